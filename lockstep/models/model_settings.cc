#include "lockstep/models/model_settings.h"

#include <cmath>

#include <fmt/format.h>

#include "lockstep/base/error.h"
#include "lockstep/base/numbers.h"

namespace lockstep::models {
namespace {

constexpr int64_t kColourChannels = 3;

Stem stem_of(const std::string& name) {
  if (name == "cifar") return Stem::kCifar;
  if (name == "imagenet") return Stem::kImageNet;
  throw InvalidArgument("models", {.code = ErrorCode::kBadOption,
                                   .what = "there is no such stem of a model",
                                   .expected = "cifar or imagenet",
                                   .got = name.substr(0, 40)});
}

}  // namespace

std::map<std::string, std::string> to_settings(const ModelSpec& spec) {
  std::map<std::string, std::string> settings{
      {"name", spec.name},
      {"classes", std::to_string(spec.classes)},
      {"stem", spec.stem == Stem::kCifar ? "cifar" : "imagenet"},
      {"in_features", std::to_string(spec.in_features)},
      {"width", std::to_string(spec.width)},
      {"depth", std::to_string(spec.depth)}};
  // Older checkpoints, from before there was a choice, do not have this entry.
  if (spec.channels != kColourChannels) {
    settings["channels"] = std::to_string(spec.channels);
  }
  return settings;
}

ModelSpec spec_from_settings(const std::map<std::string, std::string>& text) {
  return {.name = setting_text(text, "name"),
          .classes = setting_size(text, "classes"),
          .stem = stem_of(setting_text(text, "stem")),
          .channels = text.contains("channels") ? setting_size(text, "channels")
                                                : kColourChannels,
          .in_features = setting_size(text, "in_features"),
          .width = setting_size(text, "width"),
          .depth = setting_size(text, "depth")};
}

const std::string& setting_text(
    const std::map<std::string, std::string>& settings, const char* key) {
  const auto found = settings.find(key);
  if (found != settings.end()) return found->second;
  throw InvalidArgument("models",
                        {.code = ErrorCode::kBadOption,
                         .what = "the description of a model is incomplete",
                         .expected = fmt::format("a '{}'", key),
                         .got = "none"});
}

int64_t setting_size(const std::map<std::string, std::string>& settings,
                     const char* key) {
  const std::string& text = setting_text(settings, key);
  const auto size = parse_number<int64_t>(text);
  if (size && *size >= 0 && *size <= kMaxModelSize) return *size;
  throw InvalidArgument("models",
                        {.code = ErrorCode::kBadOption,
                         .what = fmt::format("'{}' of a model can't be", key),
                         .expected = fmt::format("0 to {}", kMaxModelSize),
                         .got = text.substr(0, 40)});
}

double setting_number(const std::map<std::string, std::string>& settings,
                      const char* key) {
  const std::string& text = setting_text(settings, key);
  const auto number = parse_number<double>(text);
  if (number && std::isfinite(*number)) return *number;
  throw InvalidArgument("models",
                        {.code = ErrorCode::kBadOption,
                         .what = fmt::format("'{}' of a model can't be", key),
                         .expected = "a finite number",
                         .got = text.substr(0, 40)});
}

}  // namespace lockstep::models
