#pragma once

#include <cstdint>

#include "lockstep/checkpoint/saved_state.h"

namespace lockstep::train {

/// The factor of the loss in float16 steps, so that small gradients do not
/// vanish (Micikevicius et al. 2018, section 3.2): halved after a step that
/// overflowed, doubled after 2,000 in a row that did not, as PyTorch's
/// GradScaler does.
///
/// The backward of a loss that states its weight computes gradients that are
/// larger by the weight of a sample (its tokens, say), and that of a sum ones
/// that are larger by the samples. By how much is known after the first step
/// only. If that overflowed, the scale falls at once to where that of a mean
/// over the samples begins.
class LossScaler {
 public:
  double scale() const { return scale_; }
  /// Notes a step whose gradients were `magnitude` times as large as those of a
  /// mean over the samples. Returns false if it overflowed and a smaller scale
  /// could not cure that.
  bool update(bool is_finite, double magnitude = 1);

  OptimizerState state() const;
  void load_state(const OptimizerState& state);

 private:
  static constexpr double kFirstScale = 65536;

  double scale_ = kFirstScale;
  int64_t good_steps_ = 0;  // since it changed
};

}  // namespace lockstep::train
