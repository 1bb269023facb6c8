#pragma once

#include <cstdint>
#include <optional>
#include <vector>

#include <torch/types.h>

#include "lockstep/comm/world.h"
#include "lockstep/parallel/ddp/options.h"

namespace lockstep::ddp {

/// What the ranks agreed on before they exchange the gradients of a backward.
struct Round {
  double weight = 1;        ///< of this rank's gradients in the sum
  int root = 0;             ///< whose buffers count
  std::vector<int> active;  ///< ranks that have inputs; empty outside of join()
};

/// Agrees with the other ranks on rounds: who takes part, and with which weight
/// each rank's gradients enter the sum. Within join() ranks that have no inputs
/// left take part with zeros, so each round starts with a message.
class Rounds {
 public:
  Rounds(const World& world, torch::Device device, GradientAverage average)
      : world_(world), device_(device), average_(average) {}

  /// Before a backward of `samples` samples: those of a rank with inputs.
  Round next(int64_t samples);
  /// In join(), by a rank without inputs. Its `active` is empty if no rank has
  /// any, which ends join().
  Round next_without_inputs() { return agree(false, 0); }
  /// Whether next() needs the number of samples.
  bool counts_samples() const {
    return joining_ || average_ == GradientAverage::kSamples;
  }
  /// Whether what all ranks have in common stays the same in the weighted sum
  /// of this round.
  bool sums_to_average(const Round& round) const;

  bool is_joining() const { return joining_.has_value(); }
  void begin_join(const JoinOptions& options) {
    joining_ = Joining{.options = options, .last_active = {}};
  }
  void end_join() { joining_.reset(); }
  /// Whether join() ended by throw_on_early_termination, on every rank.
  bool is_ended() const { return joining_ && joining_->is_ended; }
  /// The ranks of the last round of join() that had inputs.
  const std::vector<int>& last_active() const { return joining_->last_active; }

 private:
  struct Joining {
    JoinOptions options;
    std::vector<int> last_active;
    bool is_ended = false;
  };

  Round agree(bool is_active, int64_t samples);
  void note_active(const std::vector<int>& active);

  World world_;
  torch::Device device_;
  GradientAverage average_;
  std::optional<Joining> joining_;
};

}  // namespace lockstep::ddp
