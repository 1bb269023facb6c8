#pragma once

#include <torch/nn/cloneable.h>
#include <torch/nn/modules/batchnorm.h>
#include <torch/types.h>

#include "lockstep/comm/world.h"

namespace lockstep {

/// torch's SyncBatchNorm for C++, on CPU as well: in training, mean and
/// variance are those of the batches of all ranks together, however they are
/// split. A rank may have no sample, but must take part.
///
///     norm = register_module(
///         "norm", lockstep::SyncBatchNorm(torch::nn::BatchNormOptions(64),
///                                         world));
///
/// Input [N, C, ...], output like it. In a C++ module, whose members are
/// typed, it is written where BatchNorm would be: there is no conversion.
/// forward() and its backward are collective on `world`, in training alone.
///
/// The ranks' losses are coupled by the statistics, so weights must be part of
/// them: with batches of different sizes, divide each rank's summed loss by the
/// samples of all, and average with GradientAverage::kNone.
class SyncBatchNormImpl : public torch::nn::Cloneable<SyncBatchNormImpl> {
 public:
  SyncBatchNormImpl(const torch::nn::BatchNormOptions& options,
                    const World& world);

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
  World world_;
};
TORCH_MODULE(SyncBatchNorm);

}  // namespace lockstep
