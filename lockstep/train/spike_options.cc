#include "lockstep/train/spike_options.h"

#include <cmath>
#include <utility>

#include "lockstep/base/names.h"

namespace lockstep::train {
namespace {

constexpr std::pair<OnSpike, const char*> kActions[] = {
    {OnSpike::kNothing, "nothing"},
    {OnSpike::kSkip, "skip"},
    {OnSpike::kRollBack, "roll-back"}};

[[noreturn]] void refuse(const char* name, const char* expected,
                         const std::string& got) {
  throw InvalidArgument("train", {.code = ErrorCode::kBadOption,
                                  .what = fmt::format("{} can't be", name),
                                  .expected = expected,
                                  .got = got});
}

}  // namespace

OnSpike parse_on_spike(const std::string& name) {
  return value_named(Names<OnSpike>(kActions), "answer to a spike", name);
}
std::vector<std::string> on_spike_names() {
  return all_names(Names<OnSpike>(kActions));
}
std::string to_string(OnSpike action) {
  return name_of(Names<OnSpike>(kActions), "an answer to a spike", action);
}

void check(const SpikeOptions& options) {
  if (!std::isfinite(options.sigma) || options.sigma <= 0) {
    refuse("spike_sigma", "a finite number above 0",
           fmt::format("{:g}", options.sigma));
  }
  if (options.window < 2) {
    refuse("spike_window", "2 or more", fmt::format("{}", options.window));
  }
}

}  // namespace lockstep::train
