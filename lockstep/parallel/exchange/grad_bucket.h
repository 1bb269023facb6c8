#pragma once

#include <cstdint>
#include <functional>
#include <vector>

#include <torch/types.h>

#include "lockstep/comm/world.h"

namespace lockstep {

/// Gradients of one type that the ranks exchange in one go; what a CommHook
/// sees of them.
struct GradBucket {
  int64_t index = 0;  ///< buckets are exchanged in this order, on every rank
  bool is_last = false;
  /// 1-d: this rank's gradients one after another, with zeros in gaps.
  torch::Tensor buffer;
  std::vector<torch::Tensor> gradients;   ///< views of it, as the parameters
  std::vector<torch::Tensor> parameters;  ///< whose they are
  /// The factor with which this rank's gradients enter the sum: 1 / ranks, or
  /// its share of the samples.
  double weight = 1;
};

/// Replaces bucket.buffer by the weighted sum of all ranks' buffers, in place.
/// Runs in the reducer's own thread, bucket after bucket, while the backward
/// goes on; it may wait, and make as many calls to the World (a group of its
/// own) as it likes, the same on every rank.
using CommHook = std::function<void(const World& world, GradBucket& bucket)>;

}  // namespace lockstep
