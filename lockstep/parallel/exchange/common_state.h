#pragma once

#include <cstdint>
#include <string>
#include <string_view>
#include <unordered_map>
#include <utility>
#include <vector>

#include <torch/types.h>

#include "lockstep/comm/process_group.h"
#include "lockstep/optim/block_optimizer.h"

namespace lockstep {

/// Compares what every rank has a copy of, and what must be equal: the
/// parameters, the state of the optimizer and its options.
///
/// In each step the ranks exchange a digest of the options and of a part of the
/// tensors. The parts take turns, so that all of them are compared within
/// kTurns steps, and a step reads 1/kTurns of the tensors. If the digests
/// differ, explain() finds the tensor or the option.
///
///     CommonState::Contents contents;
///     contents.add(...);  // parameters, in the same order on all ranks
///     values = state.next_values(contents);
class CommonState {
 public:
  /// An odd number: a program may make two kinds of steps in turns.
  static constexpr int64_t kTurns = 63;

  /// The state of a step.
  class Contents {
   public:
    Contents() = default;
    /// Also compares the options of `optimizer`, which must not be null.
    explicit Contents(const optim::BlockOptimizer* optimizer)
        : optimizer_(optimizer), options_(optimizer->common_text()) {}

    /// Adds a parameter, or the optimizer's state `kind` of one. `p` is the
    /// index of the parameter. Leaves out tensors that the ranks share, and
    /// those of which each rank has a part.
    void add(const std::string& kind, size_t p, const torch::Tensor& tensor);

   private:
    friend CommonState;
    struct Item {
      std::string kind;
      size_t parameter;
      torch::Tensor tensor;
    };

    const optim::BlockOptimizer* optimizer_ = nullptr;
    std::string options_;
    std::vector<Item> items_;
    int64_t bytes_ = 0;  // of all items
  };

  struct Digest {
    int64_t options = 0;
    int64_t values = 0;
    bool operator==(const Digest&) const = default;
  };

  /// `names` are those of the parameters.
  explicit CommonState(std::vector<std::string> names)
      : names_(std::move(names)) {}

  /// Makes next() and next_values() cover all tensors.
  void compare_all() { compares_all_ = true; }
  /// Returns a checksum of the next part, an int64 scalar on the device of the
  /// tensors. Does not wait for an accelerator.
  torch::Tensor next_values(const Contents& contents);
  /// Returns the checksums of the options and of the next part.
  Digest next(const Contents& contents);

  /// Compares all of the state over the ranks. Throws ParallelError on every
  /// rank, naming the first difference and the ranks that differ from the
  /// others. Returns if nothing differs. Collective.
  void explain(const Contents& contents, const ProcessGroup& world);

 private:
  std::string name_of(const Contents::Item& item) const;

  bool compares_all_ = false;
  std::vector<std::string> names_;
  /// Number of parts that were compared, by optimizer. Steps of several
  /// optimizers take turns, and each has its own contents.
  std::unordered_map<const optim::BlockOptimizer*, int64_t> turns_;
};

}  // namespace lockstep
