#include "lockstep/parallel/step/not_finite_report.h"

#include <algorithm>
#include <cmath>

#include <fmt/format.h>
#include <torch/utils.h>

#include "lockstep/base/log.h"
#include "lockstep/device/not_finite.h"
#include "lockstep/parallel/module/nested.h"

namespace lockstep {

using c10::IValue;
using torch::Tensor;

namespace {

/// Returns "nan", "inf" or "-inf". The sign of a NaN is dropped, because it
/// means nothing.
std::string name_of(double value) {
  return std::isnan(value) ? "nan" : fmt::format("{}", value);
}

/// Describes the first tensor in `value` that is not finite, under the name
/// `name`.
std::string first_in(const std::string& name, const IValue& value) {
  for (const TensorAtPath& item : tensors_in(value)) {
    auto found = describe_not_finite(name, item.tensor);
    if (!found.empty()) return found;
  }
  return "";
}

std::string first_gradient(const ModuleHandle& module) {
  std::string found;
  for (const auto& [name, parameter] : module.parameters) {
    found = describe_not_finite("the gradient of parameter '" + name + "'",
                                parameter.grad());
    if (!found.empty()) break;
  }
  return found;
}

}  // namespace

std::string first_not_finite(const std::vector<IValue>& inputs,
                             const IValue& target, const ModuleHandle& module,
                             const std::string& gradient) {
  const torch::NoGradGuard no_grad;
  for (const IValue& input : inputs) {
    auto found = first_in("the batch's inputs", input);
    if (!found.empty()) return found;
  }
  auto found = first_in("the batch's target", target);
  if (!found.empty()) return found;
  for (const auto& [name, parameter] : module.parameters) {
    found = describe_not_finite("parameter '" + name + "'", parameter);
    if (!found.empty()) return found;
  }
  found = first_gradient(module);
  if (found.empty()) found = gradient;
  return found.empty()
             ? "the loss itself (inputs, parameters and gradients are finite)"
             : found;
}

void clip_grad_norm(const std::vector<Tensor>& parameters,
                    const ModuleHandle& module, double max_norm,
                    StepResult& result) {
  std::vector<Tensor> gradients, norms;
  for (const Tensor& parameter : parameters) {
    if (!parameter.grad().defined()) continue;
    gradients.push_back(parameter.grad().detach());
    norms.push_back(gradients.back().norm(2));
  }
  result.gradient_norm = 0;
  if (norms.empty()) return;
  const Tensor norm =
      norms.size() == 1 ? norms.front() : torch::stack(norms).norm(2);
  result.gradient_norm = norm.item<double>();
  result.is_finite = std::isfinite(result.gradient_norm);
  if (!result.is_finite) {
    result.not_finite = first_gradient(module);
    return;
  }
  const Tensor factor = (max_norm / (norm + 1e-6)).clamp_max(1.0);
  for (Tensor& gradient : gradients) gradient.mul_(factor);
}

bool reports_loss(const ReplicaGroup& group, const StepTotals& totals) {
  const auto first =
      std::find_if(totals.shards.begin(), totals.shards.end(),
                   [](const auto& of) { return !std::isfinite(of.loss); });
  // Each shard has a finite loss, but the sum overflows.
  if (first == totals.shards.end()) return group.rank() == 0;
  const auto shard = first - totals.shards.begin();
  return shard >= group.own_shards().first && shard < group.own_shards().last;
}

void warn_not_finite(ReplicaGroup& group, const TrainStepOptions& options,
                     const StepResult& result, bool reports) {
  const bool has_loss = std::isfinite(result.loss);
  if (!options.warn_not_finite()) return;
  if (has_loss && options.loss_scale() != 1) return;
  if (!group.note_not_finite() || !reports) return;
  const bool has_ranks = group.options().process_group().size() > 1;
  const std::string what =
      has_loss ? fmt::format("the norm of the gradients is {}",
                             name_of(result.gradient_norm))
               : fmt::format("the loss is {}", name_of(result.loss));
  log_warning(
      has_ranks ? "ddp" : "parallel",
      fmt::format(
          "train_step() updated nothing, because {}{}{}{}. There is no warning "
          "for later steps: check StepResult::is_finite. Lower the learning "
          "rate or set TrainStepOptions().clip_grad_norm(1.0)",
          what,
          has_ranks && !has_loss ? fmt::format(" on rank {}", group.rank())
                                 : "",
          result.not_finite.empty() ? "" : "; first seen in ",
          result.not_finite));
}

}  // namespace lockstep
