#include "lockstep/models/model.h"

#include <algorithm>

#include <fmt/format.h>

#include "lockstep/base/error.h"
#include "lockstep/base/text.h"
#include "lockstep/device/random.h"
#include "lockstep/models/layers.h"

namespace lockstep::models {
namespace {

void check_size(const ModelSpec& spec, const char* what, int64_t size) {
  if (size >= 1) return;
  throw InvalidArgument(
      "models", {.code = ErrorCode::kBadOption,
                 .what = fmt::format("can't build {}: {} is out of range",
                                     spec.name, what),
                 .expected = "at least 1",
                 .got = fmt::format("{}", size)});
}

std::shared_ptr<Model> build(const ModelSpec& spec, Init init) {
  if (spec.name == "cnn") return make_cnn(spec, init);
  if (spec.name == "mlp") return make_mlp(spec, init);
  return make_resnet(spec, init);
}

}  // namespace

const std::vector<std::string>& names() {
  static const std::vector<std::string> known = {"cnn", "mlp", "resnet18",
                                                 "resnet34"};
  return known;
}

std::shared_ptr<Model> make(const ModelSpec& spec, Init init) {
  if (std::find(names().begin(), names().end(), spec.name) == names().end()) {
    throw InvalidArgument("models",
                          {.code = ErrorCode::kUnknownName,
                           .what = "there is no model '" + spec.name + "'",
                           .fix = did_you_mean(spec.name, names())});
  }
  check_size(spec, "classes", spec.classes);
  check_size(spec, "channels", spec.channels);
  if (spec.name == "mlp") {
    check_size(spec, "in_features", spec.in_features);
    check_size(spec, "width", spec.width);
    check_size(spec, "depth", spec.depth);
  }
  if (init == Init::kRandom) return build(spec, init);
  // Random numbers of the layers must not shift the user's random stream.
  const RandomScope aside(0, 0, 0);
  return build(spec, init);
}

std::shared_ptr<torch::nn::Module> BuiltModel::clone(
    const std::optional<torch::Device>& device) const {
  return with_state_of(*this, make(spec_, Init::kNone), device);
}

int64_t count_parameters(const torch::nn::Module& module) {
  int64_t count = 0;
  for (const auto& parameter : module.parameters()) count += parameter.numel();
  return count;
}

}  // namespace lockstep::models
