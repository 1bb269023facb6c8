#pragma once

#include <torch/nn/cloneable.h>
#include <torch/nn/modules/batchnorm.h>
#include <torch/types.h>

#include "lockstep/comm/process_group.h"

namespace lockstep {

/// SyncBatchNorm for C++, also on CPU. In training, mean and variance are
/// computed over the batches of all ranks together, however they are split. A
/// rank may have no samples, but must take part.
///
///     norm = register_module(
///         "norm", lockstep::SyncBatchNorm(torch::nn::BatchNormOptions(64),
///                                         group));
///
/// The input is [N, C, ...], and the output has the same shape. Use it in place
/// of BatchNorm in the module's source. There is no conversion function,
/// because the members of C++ modules are typed. In training only, forward()
/// and its backward are collective on `group`.
///
/// The statistics couple the losses of the ranks, so the losses themselves must
/// be weighted. With batches of different sizes, divide each rank's summed loss
/// by the number of samples of all ranks, and multiply it by the number of
/// ranks, because the gradients of the ranks are averaged.
class SyncBatchNormImpl : public torch::nn::Cloneable<SyncBatchNormImpl> {
 public:
  SyncBatchNormImpl(const torch::nn::BatchNormOptions& options,
                    const ProcessGroup& group);

  void reset() override;
  void pretty_print(std::ostream& stream) const override;
  torch::Tensor forward(const torch::Tensor& input);

  torch::nn::BatchNormOptions options;
  torch::Tensor weight;  ///< [C]; undefined unless affine
  torch::Tensor bias;
  torch::Tensor running_mean;  ///< [C]; undefined unless tracked
  torch::Tensor running_var;
  torch::Tensor num_batches_tracked;

 private:
  ProcessGroup world_;
};
TORCH_MODULE(SyncBatchNorm);

}  // namespace lockstep
