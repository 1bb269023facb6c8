#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include <c10/core/StorageImpl.h>
#include <c10/util/intrusive_ptr.h>
#include <torch/types.h>

#include "lockstep/comm/process_group.h"
#include "lockstep/parallel/module/module_handle.h"

namespace lockstep::ddp {

/// The parameters of a module that require a gradient, each once.
struct TrainedParameters {
  /// Throws InvalidArgument if no parameter requires a gradient, or if the
  /// parameters that do are not all on one device.
  explicit TrainedParameters(const ModuleHandle& module);

  /// Returns the names of parameters for a message, at most the first ten.
  std::string names_of(const std::vector<size_t>& places) const;

  std::vector<std::string> names;
  std::vector<torch::Tensor> parameters;
  ModuleHandle::Named frozen;  ///< parameters that require no gradient
  torch::Device device = torch::kCPU;
};

/// Tracks changes that a program made to its parameters since the last check.
/// Ranks whose programs made the same changes have the same parameters. If the
/// changes differ, it is worth comparing the values.
class ParameterChanges {
 public:
  explicit ParameterChanges(std::vector<torch::Tensor> parameters);

  /// Returns a hash of how often each parameter was written to, and which ones
  /// got other memory, since the last call. Costs a few nanoseconds per
  /// parameter.
  int64_t fingerprint();

 private:
  using WeakStorage = c10::weak_intrusive_ptr<c10::StorageImpl>;
  struct Seen {
    uint32_t version = 0;
    /// Weak, so it does not keep the memory, but keeps the address from being
    /// reused by another storage.
    WeakStorage storage;
  };
  static Seen observe(const torch::Tensor& parameter);

  std::vector<torch::Tensor> parameters_;
  std::vector<Seen> seen_;
};

/// Returns `numbers` (int64) and their complements. If the ranks take the
/// maximum of this message, are_same() says whether they all sent the same.
torch::Tensor comparison_of(const torch::Tensor& numbers);
bool are_same(const torch::Tensor& largest);

}  // namespace lockstep::ddp
