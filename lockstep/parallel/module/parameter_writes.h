#pragma once

#include <cstddef>
#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include <torch/types.h>

namespace lockstep {

/// Finds out which parameters are written to while a module computes. Replicas
/// on the host share the parameters' memory, so a forward that writes to them,
/// as that of an Embedding with max_norm does, changes what other shards read
/// at the same time. On ranks, each would change its own copy in another way.
///
/// Looks at version counters, which replicas share with the module: costs some
/// nanoseconds for each parameter. A write through data() or set_data() leaves
/// no trace.
class ParameterWrites {
 public:
  /// Keeps a reference to `parameters`.
  explicit ParameterWrites(const std::vector<torch::Tensor>& parameters);

  /// Returns the place of the first parameter that was written to since.
  std::optional<size_t> first() const;

 private:
  const std::vector<torch::Tensor>& parameters_;
  std::vector<int64_t> versions_;
};

/// Throws ParallelError: parameter `name` was written to. `ranks` is their
/// number; `failure` says what failed after that, if anything did.
[[noreturn]] void refuse_written_parameter(const std::string& name, int ranks,
                                           const std::string& failure = "");

}  // namespace lockstep
