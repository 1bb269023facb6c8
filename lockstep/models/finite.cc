#include "lockstep/models/finite.h"

#include <fmt/format.h>

namespace lockstep::models {

std::string describe_not_finite(const std::string& name,
                                const torch::Tensor& tensor) {
  if (!tensor.defined() || !tensor.is_floating_point()) return "";
  // Reads once and writes nothing; only an overflow needs the long way.
  if (tensor.sum().isfinite().item<bool>()) return "";
  const auto bad = tensor.isfinite().logical_not();
  const auto count = bad.sum().item<int64_t>();
  if (count == 0) return "";
  const bool has_nan = tensor.isnan().any().item<bool>();
  return fmt::format("{} ({} in {} of {} elements)", name,
                     has_nan ? "nan" : "inf", count, tensor.numel());
}

std::string first_not_finite(
    const std::vector<torch::Tensor>& inputs,
    const std::vector<std::pair<std::string, torch::Tensor>>& parameters) {
  const torch::NoGradGuard no_grad;
  for (const torch::Tensor& input : inputs) {
    auto found = describe_not_finite("the batch's inputs", input);
    if (!found.empty()) return found;
  }
  for (const auto& [name, parameter] : parameters) {
    auto found = describe_not_finite("parameter '" + name + "'", parameter);
    if (!found.empty()) return found;
  }
  for (const auto& [name, parameter] : parameters) {
    auto found = describe_not_finite("the gradient of parameter '" + name + "'",
                                     parameter.grad());
    if (!found.empty()) return found;
  }
  return "the loss itself (inputs, parameters and gradients are finite)";
}

}  // namespace lockstep::models
