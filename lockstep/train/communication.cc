#include "lockstep/train/communication.h"

#include <utility>

#include "lockstep/base/names.h"

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

void require(bool holds, const char* name, const char* expected, double got) {
  if (holds) return;
  throw InvalidArgument("train", {.code = ErrorCode::kBadOption,
                                  .what = fmt::format("{} can't be", name),
                                  .expected = expected,
                                  .got = fmt::format("{:g}", got)});
}

}  // namespace

GradCompression parse_grad_compression(const std::string& name) {
  return value_named(Names<GradCompression>(kCompressions), "compression",
                     name);
}
std::vector<std::string> grad_compression_names() {
  return all_names(Names<GradCompression>(kCompressions));
}
std::string to_string(GradCompression compression) {
  return name_of(Names<GradCompression>(kCompressions), "a compression",
                 compression);
}

OuterOptimizer parse_outer_optimizer(const std::string& name) {
  return value_named(Names<OuterOptimizer>(kOuterOptimizers), "outer optimizer",
                     name);
}
std::vector<std::string> outer_optimizer_names() {
  return all_names(Names<OuterOptimizer>(kOuterOptimizers));
}
std::string to_string(OuterOptimizer optimizer) {
  return name_of(Names<OuterOptimizer>(kOuterOptimizers), "an outer optimizer",
                 optimizer);
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
