#pragma once

#include <array>
#include <cstddef>
#include <limits>
#include <stdexcept>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include <torch/types.h>

#include "lockstep/losses/weighted_loss.h"
#include "tests/differential/case.h"

namespace lockstep::differential {

/// The losses of programs. The first four keep the contract of train_step(); in
/// a loop of the user's own each is right.
inline constexpr std::array<std::string_view, 10> kLosses{
    "square",         ///< a mean over the samples
    "weighted",       ///< returns the sum of the samples' weights
    "total",          ///< a sum, with LossReduction::kSum
    "cross_entropy",  ///< lockstep::cross_entropy with ignored targets
    "ignoring",       ///< torch's: a mean over targets, without their number
    "weighs",         ///< a weighted mean, without the sum of the weights
    "summed",         ///< a sum that is said to be a mean
    "contrastive",    ///< compares samples with each other
    "unit_weights",   ///< "weighted" with the weight 1
    "noisy",          ///< has random numbers of its own
};

/// Returns true if train_step() may be called with the loss.
bool keeps_contract(const std::string& loss);

/// The loss of a batch or a shard. `parameters`: what an L2 term is made of;
/// `x`: the first input, by which a loss of forces differentiates. `loss` is
/// one of kLosses, or of cases that are no programs: square, dot, sum or force.
WeightedLoss loss_of(const Case& of, const std::string& loss,
                     const c10::IValue& outputs, const c10::IValue& target,
                     const std::vector<torch::Tensor>& parameters,
                     const torch::Tensor& x, const torch::Tensor& residual);

/// A loss as train_step() is given it. Each is a type of its own, as lambdas
/// are.
template <size_t number>
struct LossFunction {
  const Case& of;
  const std::string& loss;
  const std::vector<torch::Tensor>& parameters;

  WeightedLoss operator()(const c10::IValue& outputs,
                          const c10::IValue& target) const {
    WeightedLoss result =
        loss_of(of, loss, outputs, target, parameters, {}, {});
    // The mean over the units of a shard without units is 0 / 0.
    if (result.weight.defined() && result.weight.item<double>() == 0) {
      result.loss = result.loss * std::numeric_limits<double>::quiet_NaN();
    }
    return result;
  }
};

/// Calls `use` with the function of `loss`.
template <class Use, size_t... numbers>
auto with_loss(const Case& of, const std::string& loss,
               const std::vector<torch::Tensor>& parameters, const Use& use,
               std::index_sequence<numbers...>) {
  decltype(use(LossFunction<0>{of, loss, parameters})) result;
  bool is_known = false;
  const auto use_if = [&](auto function, std::string_view name) {
    if (is_known || loss != name) return;
    is_known = true;
    result = use(function);
  };
  (use_if(LossFunction<numbers>{of, loss, parameters}, kLosses[numbers]), ...);
  return is_known ? result
                  : use(LossFunction<kLosses.size()>{of, loss, parameters});
}

}  // namespace lockstep::differential
