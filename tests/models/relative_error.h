#pragma once

#include <torch/types.h>

namespace lockstep::models {

/// Returns the largest error in units of the largest value, because sums of
/// many terms cancel.
inline double relative_error(const torch::Tensor& got,
                             const torch::Tensor& expected) {
  return ((got.to(torch::kFloat64) - expected).abs().max() /
          expected.abs().max())
      .item<double>();
}

}  // namespace lockstep::models
