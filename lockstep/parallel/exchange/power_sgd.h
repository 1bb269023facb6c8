#pragma once

#include <cstdint>
#include <map>
#include <memory>
#include <string>
#include <vector>

#include <torch/types.h>

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

  /// For a run that is going to be saved: draws the first factors of
  /// `parameters` now, in this order. Else they are drawn bucket by bucket when
  /// these are first compressed, and a run that is resumed cuts its buckets
  /// anew.
  void prepare(const std::vector<torch::Tensor>& parameters);
  /// Of the parameters of prepare(), by their places among them: "error.<i>",
  /// which is each rank's own, "factor.<i>" of those that are compressed, and
  /// "steps". Shares its memory with the hook.
  std::map<std::string, torch::Tensor> state_dict() const;
  /// Takes what state_dict() had; goes on with the same bits if warm_start is
  /// set. Throws InvalidArgument, and changes nothing, if an entry is missing
  /// or of another shape.
  void load_state_dict(const std::map<std::string, torch::Tensor>& state);

 private:
  struct State;
  std::shared_ptr<State> state_;
};

}  // namespace lockstep
