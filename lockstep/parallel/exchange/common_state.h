#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include <torch/types.h>

#include "lockstep/comm/process_group.h"
#include "lockstep/optim/optimizer.h"

namespace lockstep {

/// Compares what every rank has a copy of, and what must be equal: the
/// parameters, the state of the optimizer and its options.
///
/// In each step the ranks exchange a digest of the options and of a part of the
/// tensors. The parts take turns, so that all of them are compared within
/// kTurns steps, and a step reads 1/kTurns of the tensors. If the digests
/// differ, explain() finds out what it was.
///
///     state.begin("");
///     state.add(...);  // parameters, in the same order on all ranks
///     values = state.next_values();
class CommonState {
 public:
  static constexpr int64_t kTurns = 64;

  struct Digest {
    int64_t options = 0;
    int64_t values = 0;
    bool operator==(const Digest&) const = default;
  };

  /// `names` are those of the parameters.
  explicit CommonState(std::vector<std::string> names)
      : names_(std::move(names)) {}

  /// Makes next() and next_values() cover all tensors.
  void compare_all() { turns_ = 1; }
  /// Starts the state of a step. `options` has a line for each group of the
  /// optimizer, and is empty without one.
  void begin(std::string options);
  /// Adds a parameter, or the optimizer's state `kind` of one. `p` is the index
  /// of the parameter in `names`. Leaves out tensors that the ranks share, and
  /// those of which each rank has a part.
  void add(std::string_view kind, size_t p, const torch::Tensor& tensor);
  /// Returns a checksum of the options.
  int64_t options() const;
  /// Returns a checksum of the next part, an int64 scalar on the device of the
  /// tensors. Does not wait for an accelerator.
  torch::Tensor next_values();
  /// Returns both checksums of a step: of `parameters`, and of `optimizer`,
  /// which may be null. `positions` are the indices of its parameters.
  Digest next(const std::vector<torch::Tensor>& parameters,
              const optim::Optimizer* optimizer,
              const std::vector<size_t>& positions);

  /// Compares all of the state over the ranks. Throws ParallelError on every
  /// rank, naming the first difference and the ranks that differ from the
  /// others. Returns if nothing differs. Collective.
  void explain(const ProcessGroup& world);

 private:
  struct Item {
    std::string_view kind;
    size_t parameter;
    torch::Tensor tensor;
  };
  std::string name_of(const Item& item) const;

  int64_t turns_ = kTurns;
  std::vector<std::string> names_;
  std::string options_;
  std::vector<Item> items_;
  int64_t bytes_ = 0;  // of all items
  int64_t next_ = 0;   // byte at which the next part begins
};

}  // namespace lockstep
