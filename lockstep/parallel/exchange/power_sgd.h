#pragma once

#include <cstdint>
#include <map>
#include <memory>
#include <string>
#include <vector>

#include <torch/types.h>

#include "lockstep/parallel/exchange/grad_bucket.h"

namespace lockstep {

/// PowerSGD options. Names and defaults follow PyTorch's PowerSGDState.
struct PowerSGDOptions {
  TORCH_ARG(int64_t, matrix_approximation_rank) = 1;
  /// Steps with a plain all-reduce before the first compressed one.
  TORCH_ARG(int64_t, start_powerSGD_iter) = 1000;
  /// A gradient is compressed if this makes it smaller by at least this factor.
  TORCH_ARG(double, min_compression_rate) = 2;
  /// Adds the compression error of a step to the gradients of the next one.
  TORCH_ARG(bool, use_error_feedback) = true;
  /// Starts a step from the factors of the previous one.
  TORCH_ARG(bool, warm_start) = true;
  TORCH_ARG(double, orthogonalization_epsilon) = 0;
  TORCH_ARG(uint32_t, random_seed) = 0;
};

/// A CommHook that exchanges rank-r approximations of the gradients:
///
///     model->register_comm_hook(PowerSGD(PowerSGDOptions()));
///
/// Algorithm 1 and 2 of Vogels, Karimireddy, Jaggi, "PowerSGD: Practical
/// Low-Rank Gradient Compression for Distributed Optimization" (2019), with
/// the random numbers of torch's powerSGD_hook. Copies share their state.
class PowerSGD {
 public:
  /// Throws InvalidArgument for invalid options.
  explicit PowerSGD(const PowerSGDOptions& options);
  void operator()(const ProcessGroup& group, GradBucket& bucket);

  /// Draws the first factors of `parameters` now, in this order. Needed for a
  /// run that will be saved. Otherwise the factors are drawn bucket by bucket
  /// when each is first compressed, and a resumed run has different buckets.
  void prepare(const std::vector<torch::Tensor>& parameters);
  /// Returns "steps" and, for the i-th parameter passed to prepare(),
  /// "error.i", which differs between ranks, and "factor.i" if the parameter is
  /// compressed. Shares memory with the hook.
  std::map<std::string, torch::Tensor> state_dict() const;
  /// Loads the entries of state_dict(). The run continues with the same bits if
  /// warm_start is set. Throws InvalidArgument, and changes nothing, if an
  /// entry is missing or has another shape.
  void load_state_dict(const std::map<std::string, torch::Tensor>& state);

 private:
  struct State;
  std::shared_ptr<State> state_;
};

}  // namespace lockstep
