#pragma once

#include <cstdint>
#include <memory>
#include <utility>
#include <vector>

#include <torch/types.h>

#include "tests/differential/case.h"
#include "tests/differential/interpreted_module.h"

namespace lockstep::differential {

/// Defect of one sample of a batch.
enum class Flaw { kNone, kInLoss, kInBackward, kNotFinite };

/// The data of a step.
struct Batch {
  int64_t samples = 0;
  std::vector<torch::Tensor> inputs;  ///< leaves; undefined: not there
  std::vector<bool> is_none;
  torch::Tensor target;  ///< [samples]
  torch::Tensor marks;   ///< [samples]; not 0: the loss throws
  torch::Tensor residual_leaf;
  torch::Tensor residual;  ///< made of it; is added to the first output

  c10::IValue nested_inputs(const Case& of) const;
  c10::IValue nested_target() const;
  /// Samples [begin, begin + count): views, which lead back to the leaves.
  Batch part(int64_t begin, int64_t count) const;
  /// The same with leaves of its own.
  Batch detached() const;
};

/// The batch of event `event`, of `samples`; a function of its arguments.
Batch make_batch(const Case& of, size_t event, size_t micro, int64_t samples,
                 torch::Dtype dtype, Flaw flaw, int64_t flawed_sample);

/// Backward with a gradient for each output. Returns whether that changed one
/// of these gradients.
bool backward_with_gradients(const Case& of, const c10::IValue& outputs,
                             const Batch& batch);

/// Returns the first sample of the part of a batch that a rank is given, and
/// the number of its samples.
std::pair<int64_t, int64_t> part_of_rank(const Case& of, int64_t samples,
                                         int rank);

}  // namespace lockstep::differential
