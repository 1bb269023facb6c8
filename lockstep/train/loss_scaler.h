#pragma once

#include <cstdint>

#include "lockstep/checkpoint/saved_state.h"

namespace lockstep::train {

/// By how much the loss of float16 steps is multiplied, so that small gradients
/// do not vanish (Micikevicius et al. 2018, section 3.2): halved after a step
/// that overflowed, doubled after 2,000 in a row that did not, as PyTorch's
/// GradScaler does.
class LossScaler {
 public:
  double scale() const { return scale_; }
  /// After a step. Returns false if the overflow is not one that a smaller
  /// scale could cure.
  bool update(bool is_finite);

  OptimizerState state() const;
  void load_state(const OptimizerState& state);

 private:
  double scale_ = 65536;
  int64_t good_steps_ = 0;  // since it changed
};

}  // namespace lockstep::train
