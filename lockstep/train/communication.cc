#include "lockstep/train/communication.h"

#include <span>
#include <utility>

#include <fmt/format.h>

#include "lockstep/base/error.h"
#include "lockstep/base/text.h"

namespace lockstep::train {
namespace {

constexpr std::pair<GradCompression, const char*> kCompressions[] = {
    {GradCompression::kNone, "none"},
    {GradCompression::kBFloat16, "bf16"},
    {GradCompression::kFloat16, "fp16"},
    {GradCompression::kPowerSgd, "powersgd"}};

constexpr std::pair<OuterOptimizer, const char*> kOuterOptimizers[] = {
    {OuterOptimizer::kAverage, "average"},
    {OuterOptimizer::kNesterov, "nesterov"}};

template <class T>
using Names = std::span<const std::pair<T, const char*>>;

template <class T>
std::vector<std::string> names_of(Names<T> known) {
  std::vector<std::string> names;
  for (const auto& [value, name] : known) names.emplace_back(name);
  return names;
}

template <class T>
T parse(Names<T> known, const char* what, const std::string& text) {
  for (const auto& [value, name] : known) {
    if (text == name) return value;
  }
  throw InvalidArgument("train",
                        {.code = ErrorCode::kUnknownName,
                         .what = fmt::format("unknown {} '{}'", what, text),
                         .fix = did_you_mean(text, names_of(known))});
}

template <class T>
std::string name_of(Names<T> known, T value) {
  for (const auto& [other, name] : known) {
    if (other == value) return name;
  }
  return "unknown";
}

void require(bool holds, const char* name, const char* expected, double got) {
  if (holds) return;
  throw InvalidArgument("train", {.code = ErrorCode::kBadOption,
                                  .what = fmt::format("{} can't be", name),
                                  .expected = expected,
                                  .got = fmt::format("{:g}", got)});
}

}  // namespace

GradCompression parse_grad_compression(const std::string& name) {
  return parse(Names<GradCompression>(kCompressions), "compression", name);
}
std::vector<std::string> grad_compression_names() {
  return names_of(Names<GradCompression>(kCompressions));
}
std::string to_string(GradCompression compression) {
  return name_of(Names<GradCompression>(kCompressions), compression);
}

OuterOptimizer parse_outer_optimizer(const std::string& name) {
  return parse(Names<OuterOptimizer>(kOuterOptimizers), "outer optimizer",
               name);
}
std::vector<std::string> outer_optimizer_names() {
  return names_of(Names<OuterOptimizer>(kOuterOptimizers));
}
std::string to_string(OuterOptimizer optimizer) {
  return name_of(Names<OuterOptimizer>(kOuterOptimizers), optimizer);
}

void check(const CommunicationOptions& options) {
  require(options.powersgd_rank >= 1, "powersgd_rank", "1 or more",
          static_cast<double>(options.powersgd_rank));
  require(options.local_steps >= 0, "local_steps", "0 or more",
          static_cast<double>(options.local_steps));
  require(!options.outer_lr || *options.outer_lr > 0, "outer_lr", "more than 0",
          options.outer_lr.value_or(0));
  require(options.outer_momentum >= 0 && options.outer_momentum < 1,
          "outer_momentum", "at least 0 and below 1", options.outer_momentum);
}

}  // namespace lockstep::train
