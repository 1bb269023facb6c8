#include "lockstep/train/state/loss_scaler.h"

#include <algorithm>
#include <cmath>

#include <fmt/format.h>

#include "lockstep/base/error.h"

namespace lockstep::training {
namespace {

constexpr int64_t kGoodSteps = 2000;
constexpr double kLargest = 0x1p40;

}  // namespace

bool LossScaler::update(bool is_finite, double magnitude) {
  if (is_finite) {
    if (++good_steps_ == kGoodSteps) {
      good_steps_ = 0;
      scale_ = std::min(scale_ * 2, kLargest);
    }
    return true;
  }
  good_steps_ = 0;
  magnitude = std::max(magnitude, 1.0);
  const bool has_grown = scale_ > kFirstScale;
  scale_ /= 2;
  if (!has_grown) {
    scale_ = std::min(
        scale_, std::exp2(std::floor(std::log2(kFirstScale / magnitude))));
  }
  return scale_ * magnitude >= 1;
}

OptimizerState LossScaler::state() const {
  return {{"scale", torch::tensor(scale_, torch::kFloat64)},
          {"good_steps", torch::tensor(good_steps_, torch::kInt64)}};
}

void LossScaler::load_state(const OptimizerState& state) {
  const double scale = state.at("scale").item<double>();
  const int64_t good_steps = state.at("good_steps").item<int64_t>();
  const bool can_be = std::isfinite(scale) && scale > 0 && scale <= kLargest &&
                      good_steps >= 0 && good_steps < kGoodSteps;
  if (!can_be) {
    throw CheckpointError({.code = ErrorCode::kCheckpointDamaged,
                           .what = "the scale of the loss can't be",
                           .expected = "above 0, and at most 2^40",
                           .got = fmt::format("{}", scale)});
  }
  scale_ = scale;
  good_steps_ = good_steps;
}

}  // namespace lockstep::training
