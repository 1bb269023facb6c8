#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include <c10/core/StorageImpl.h>
#include <c10/util/intrusive_ptr.h>
#include <torch/types.h>

#include "lockstep/comm/world.h"

namespace lockstep::ddp {

/// What a program did to its parameters since they were looked at last. Ranks
/// whose programs did the same have the same parameters; where they did not,
/// the values are worth comparing.
class ParameterChanges {
 public:
  ParameterChanges() = default;
  explicit ParameterChanges(std::vector<torch::Tensor> parameters);

  /// A number for how often each was written to, and which ones got other
  /// memory, since the last call. Costs some nanoseconds for each parameter.
  int64_t fingerprint();
  /// (2), int64: a fingerprint and its complement. The ranks' largest tell
  /// whether all are the same, as the largest complement is that of the
  /// smallest.
  static torch::Tensor message_of(int64_t fingerprint, torch::Device device);
  static bool are_same(const torch::Tensor& largest);

 private:
  using WeakStorage = c10::weak_intrusive_ptr<c10::StorageImpl>;
  struct Seen {
    uint32_t version = 0;
    /// Weak: keeps no memory, but the address, so that no other memory can be
    /// taken for it.
    WeakStorage storage;
  };
  static Seen look_at(const torch::Tensor& parameter);

  std::vector<torch::Tensor> parameters_;
  std::vector<Seen> seen_;
};

struct DifferentParameters {
  int rank = 0;                ///< the first that differs from rank 0
  std::vector<size_t> places;  ///< of its parameters that do; empty: none
};

/// Compares the parameters' bytes over the ranks (collective).
DifferentParameters compare_parameters(
    const World& world, const std::vector<torch::Tensor>& parameters);

}  // namespace lockstep::ddp
