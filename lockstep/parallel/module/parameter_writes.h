#pragma once

#include <cstddef>
#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include <torch/types.h>

namespace lockstep {

/// Detects which parameters are written to while a module computes. Replicas on
/// the host share the parameters' memory, so a forward that writes to them,
/// such as that of an Embedding with max_norm, changes what other shards read
/// at the same time. With several ranks, each would change its own copy
/// differently.
///
/// Compares version counters, which replicas share with the module. This costs
/// a few nanoseconds per parameter. Writes through data() or set_data() are not
/// detected.
class ParameterWrites {
 public:
  /// Keeps a reference to `parameters`.
  explicit ParameterWrites(const std::vector<torch::Tensor>& parameters);

  /// Returns the index of the first parameter that was written to since
  /// construction.
  std::optional<size_t> first() const;

 private:
  const std::vector<torch::Tensor>& parameters_;
  std::vector<int64_t> versions_;
};

/// Throws ParallelError: parameter `name` was written to. `ranks` is the number
/// of ranks. `failure` says what failed after that, if anything did.
[[noreturn]] void refuse_written_parameter(const std::string& name, int ranks,
                                           const std::string& failure = "");

}  // namespace lockstep
