#pragma once

#include <cstdint>
#include <optional>
#include <vector>

#include <torch/types.h>

#include "lockstep/comm/process_group.h"
#include "lockstep/parallel/ddp/ddp_options.h"

namespace lockstep::ddp {

/// Result of an agreement between the ranks before they exchange the gradients
/// of a backward.
struct Round {
  double weight = 1;        ///< weight of this rank's gradients in the sum
  int root = 0;             ///< rank whose buffers are used
  std::vector<int> active;  ///< ranks that have inputs; empty outside of join()
};

/// Agrees with the other ranks on rounds: which ranks take part, and the weight
/// of each rank's gradients in the sum. Within join(), ranks that have no
/// inputs left take part with zeros, so each round starts with a message.
class Rounds {
 public:
  Rounds(const ProcessGroup& world, torch::Device device,
         GradientAverage average)
      : world_(world), device_(device), average_(average) {}

  /// Starts a round of a rank with inputs, before a backward of `samples`
  /// samples.
  Round next(int64_t samples);
  /// Starts a round of a rank without inputs, in join(). `active` of the result
  /// is empty if no rank has inputs, which ends join().
  Round next_without_inputs() { return agree(false, 0); }
  /// Returns whether next() needs the number of samples.
  bool counts_samples() const {
    return joining_ || average_ == GradientAverage::kSamples;
  }
  /// Returns whether a value that is equal on all ranks is left unchanged by
  /// the weighted sum of this round.
  bool sums_to_average(const Round& round) const;

  bool is_joining() const { return joining_.has_value(); }
  void begin_join(const JoinOptions& options) {
    joining_ = Joining{.options = options, .last_active = {}};
  }
  void end_join() { joining_.reset(); }
  /// Returns whether throw_on_early_termination ended join(), on every rank.
  bool is_ended() const { return joining_ && joining_->is_ended; }
  /// Returns the ranks that had inputs in the last round of join().
  const std::vector<int>& last_active() const { return joining_->last_active; }

 private:
  struct Joining {
    JoinOptions options;
    std::vector<int> last_active;
    bool is_ended = false;
  };

  Round agree(bool is_active, int64_t samples);
  void note_active(const std::vector<int>& active);

  ProcessGroup world_;
  torch::Device device_;
  GradientAverage average_;
  std::optional<Joining> joining_;
};

}  // namespace lockstep::ddp
