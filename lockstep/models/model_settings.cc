#include "lockstep/models/model_settings.h"

#include <charconv>

#include <fmt/format.h>

#include "lockstep/base/error.h"

namespace lockstep::models {
namespace {

// Far beyond any model, and small enough that no product of two overflows.
constexpr int64_t kMostOfASize = 1 << 24;

const std::string& text_of(const std::map<std::string, std::string>& settings,
                           const char* key) {
  const auto found = settings.find(key);
  if (found != settings.end()) return found->second;
  throw InvalidArgument("models",
                        {.code = ErrorCode::kBadOption,
                         .what = "the description of a model is incomplete",
                         .expected = fmt::format("a '{}'", key),
                         .got = "none"});
}

int64_t size_of(const std::map<std::string, std::string>& settings,
                const char* key) {
  const std::string& text = text_of(settings, key);
  int64_t size = 0;
  const auto [end, error] =
      std::from_chars(text.data(), text.data() + text.size(), size);
  if (error == std::errc() && end == text.data() + text.size() && size >= 0 &&
      size <= kMostOfASize) {
    return size;
  }
  throw InvalidArgument("models",
                        {.code = ErrorCode::kBadOption,
                         .what = fmt::format("'{}' of a model can't be", key),
                         .expected = fmt::format("0 to {}", kMostOfASize),
                         .got = text.substr(0, 40)});
}

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
  return {{"name", spec.name},
          {"classes", std::to_string(spec.classes)},
          {"stem", spec.stem == Stem::kCifar ? "cifar" : "imagenet"},
          {"in_features", std::to_string(spec.in_features)},
          {"width", std::to_string(spec.width)},
          {"depth", std::to_string(spec.depth)}};
}

ModelSpec spec_from_settings(const std::map<std::string, std::string>& text) {
  return {.name = text_of(text, "name"),
          .classes = size_of(text, "classes"),
          .stem = stem_of(text_of(text, "stem")),
          .in_features = size_of(text, "in_features"),
          .width = size_of(text, "width"),
          .depth = size_of(text, "depth")};
}

}  // namespace lockstep::models
