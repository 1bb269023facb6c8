#include "lockstep/parallel/ddp/trained_parameters.h"

#include <algorithm>
#include <set>
#include <utility>

#include <fmt/format.h>

#include "lockstep/base/checksum.h"
#include "lockstep/base/error.h"

namespace lockstep::ddp {

using torch::Tensor;

TrainedParameters::TrainedParameters(const ModuleHandle& module) {
  std::set<const void*> seen;
  for (const auto& [name, parameter] : module.parameters) {
    if (!parameter.requires_grad()) {
      frozen.emplace_back(name, parameter);
      continue;
    }
    if (!seen.insert(parameter.unsafeGetTensorImpl()).second) continue;
    names.push_back(name);
    parameters.push_back(parameter);
  }
  if (parameters.empty()) {
    throw InvalidArgument(
        "ddp", {.code = ErrorCode::kMisuse,
                .what = "the module has no parameter that requires a gradient",
                .fix = "run it without DistributedDataParallel"});
  }
  device = parameters[0].device();
  for (size_t p = 0; p < parameters.size(); ++p) {
    if (parameters[p].device() == device) continue;
    throw InvalidArgument(
        "ddp", {.code = ErrorCode::kMixedDevices,
                .what = "the module is on several devices",
                .expected = fmt::format("'{}' on {}", names[p], device.str()),
                .got = parameters[p].device().str(),
                .fix = "move it to one: module->to(device)"});
  }
}

std::string TrainedParameters::names_of(
    const std::vector<size_t>& places) const {
  constexpr size_t kMax = 10;
  std::string text;
  for (size_t i = 0; i < std::min(places.size(), kMax); ++i) {
    text += fmt::format("{}'{}'", i == 0 ? "" : ", ", names[places[i]]);
  }
  if (places.size() > kMax) {
    text += fmt::format(" and {} more", places.size() - kMax);
  }
  return text;
}

ParameterChanges::ParameterChanges(std::vector<Tensor> parameters)
    : parameters_(std::move(parameters)) {
  for (const Tensor& parameter : parameters_) {
    seen_.push_back(observe(parameter));
  }
}

ParameterChanges::Seen ParameterChanges::observe(const Tensor& parameter) {
  return {.version = parameter.is_inference()
                         ? 0
                         : static_cast<uint32_t>(parameter._version()),
          .storage = parameter.storage().getWeakStorageImpl()};
}

int64_t ParameterChanges::fingerprint() {
  Fnv1a hash;
  for (size_t p = 0; p < parameters_.size(); ++p) {
    Seen now = observe(parameters_[p]);
    hash.add_unit(now.version - seen_[p].version);
    hash.add_unit(now.storage == seen_[p].storage ? 0 : 1);
    seen_[p] = std::move(now);
  }
  return static_cast<int64_t>(hash.value());
}

Tensor comparison_of(const Tensor& numbers) {
  return torch::cat({numbers, numbers.bitwise_not()});
}

// The largest complement is that of the smallest number.
bool are_same(const Tensor& largest) {
  const Tensor numbers = largest.cpu();
  const int64_t half = numbers.numel() / 2;
  return torch::equal(numbers.narrow(0, 0, half),
                      numbers.narrow(0, half, half).bitwise_not());
}

}  // namespace lockstep::ddp
