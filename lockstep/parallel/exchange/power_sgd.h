#pragma once

#include <cstdint>
#include <memory>

#include <torch/arg.h>

#include "lockstep/parallel/exchange/grad_bucket.h"

namespace lockstep {

/// Names and defaults of torch's PowerSGDState.
struct PowerSGDOptions {
  TORCH_ARG(int64_t, matrix_approximation_rank) = 1;
  /// Steps with a plain all-reduce before the first compressed one.
  TORCH_ARG(int64_t, start_powerSGD_iter) = 1000;
  /// A gradient is compressed if that makes it smaller by this factor.
  TORCH_ARG(double, min_compression_rate) = 2;
  /// What compression lost in a step is added to the next one's gradients.
  TORCH_ARG(bool, use_error_feedback) = true;
  /// A step starts from the factors of the one before.
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
  /// Throws InvalidArgument for options that can't be.
  explicit PowerSGD(const PowerSGDOptions& options);
  void operator()(const World& world, GradBucket& bucket);

 private:
  struct State;
  std::shared_ptr<State> state_;
};

}  // namespace lockstep
