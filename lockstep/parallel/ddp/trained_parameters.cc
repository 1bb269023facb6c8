#include "lockstep/parallel/ddp/trained_parameters.h"

#include <algorithm>
#include <set>

#include <fmt/format.h>

#include "lockstep/base/error.h"

namespace lockstep::ddp {

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
        "ddp", {.code = ErrorCode::kNothingToTrain,
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
  constexpr size_t kMost = 10;
  std::string text;
  for (size_t i = 0; i < std::min(places.size(), kMost); ++i) {
    text += fmt::format("{}'{}'", i == 0 ? "" : ", ", names[places[i]]);
  }
  if (places.size() > kMost) {
    text += fmt::format(" and {} more", places.size() - kMost);
  }
  return text;
}

}  // namespace lockstep::ddp
