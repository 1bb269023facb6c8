#pragma once

#include <cstdint>
#include <functional>
#include <vector>

#include <torch/types.h>

#include "lockstep/comm/process_group.h"

namespace lockstep {

/// Gradients of one type that the ranks exchange together, as passed to a
/// CommHook.
struct GradBucket {
  int64_t index = 0;  ///< buckets are exchanged in this order, on every rank
  bool is_last = false;
  /// 1-d: this rank's gradients in sequence, with zeros in the gaps.
  torch::Tensor buffer;
  std::vector<torch::Tensor> gradients;  ///< views of `buffer`, shaped like the
                                         ///< parameters
  std::vector<torch::Tensor> parameters;  ///< the parameters that `gradients`
                                          ///< belong to
  /// Weight of this rank's gradients in the sum: 1 / ranks, or this rank's
  /// share of the samples.
  double weight = 1;
};

/// Replaces bucket.buffer by the weighted sum of all ranks' buffers, in place.
/// Runs in a separate thread, one bucket after another, during the backward. It
/// may block, and may make any number of calls to `group`, the same calls on
/// every rank. In a loop of forward() and backward(), `group` is one that only
/// the hook uses. In train_step(), it is the group of the wrapper, so no
/// other thread of this process may use that group during the step.
using CommHook =
    std::function<void(const ProcessGroup& group, GradBucket& bucket)>;

}  // namespace lockstep
