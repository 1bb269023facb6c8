#pragma once

#include <cstdint>

#include "lockstep/train/state/stateful.h"

namespace lockstep::training {

/// Scales the loss in float16 steps so that small gradients do not vanish
/// (Micikevicius et al. 2018, section 3.2). The scale is halved after a step
/// that overflowed and doubled after 2,000 steps in a row that did not, as in
/// PyTorch's GradScaler.
///
/// If a loss states its weight, its backward computes gradients that are larger
/// by the weight of a sample (its number of tokens, say). The gradients of a
/// sum are larger by the number of samples. The factor is known only after the
/// first step. If that step overflowed, the scale drops at once to the value at
/// which a mean over the samples would begin.
class LossScaler : public Stateful {
 public:
  double scale() const { return scale_; }
  /// Notes a step whose gradients were `magnitude` times as large as those of a
  /// mean over the samples. Returns false if the step overflowed and a smaller
  /// scale can't prevent that.
  bool update(bool is_finite, double magnitude = 1);

  OptimizerState state() const override;
  void load_state(const OptimizerState& state) override;

 private:
  static constexpr double kFirstScale = 65536;

  double scale_ = kFirstScale;
  int64_t good_steps_ = 0;  // steps since the scale changed
};

}  // namespace lockstep::training
