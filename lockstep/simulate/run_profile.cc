#include "lockstep/simulate/run_profile.h"

#include <algorithm>
#include <numeric>

#include <fmt/format.h>

#include "lockstep/base/atomic_file.h"
#include "lockstep/base/error.h"
#include "lockstep/base/strict_json.h"

namespace lockstep::simulate {
namespace {

constexpr size_t kLargestReport = size_t{256} << 20;
constexpr JsonLimits kLimits{
    .depth = 16, .listed = 100'000'000, .fail = fail_data};
constexpr size_t kMinSteps = 20;
constexpr double kGradientBytes = 4;  // gradients are float32

[[noreturn]] void fail(const std::string& path, const std::string& what,
                       const std::string& expected, const std::string& got) {
  fail_data({.code = ErrorCode::kMalformedData,
             .what = path + what,
             .expected = expected,
             .got = got,
             .fix = "report a run on one device: lockstep train --devices cpu "
                    "--max-steps 100 --report run.json"});
}

double number_at(const std::string& path, const nlohmann::json& object,
                 const std::string& key, double least) {
  const auto found = object.find(key);
  const bool is_number = found != object.end() && found->is_number();
  if (is_number && found->get<double>() >= least) return found->get<double>();
  fail(path, " has no usable '" + key + "'",
       fmt::format("a number of at least {}", least),
       found == object.end() ? "nothing" : brief(*found));
}

std::vector<double> step_times(const std::string& path,
                               const nlohmann::json& run) {
  std::vector<double> seconds;
  const auto times = run.find("step_times");
  if (times != run.end() && times->is_object() && times->contains("seconds") &&
      times->at("seconds").is_array()) {
    for (const auto& time : times->at("seconds")) {
      if (time.is_number()) seconds.push_back(time.get<double>());
    }
  }
  if (seconds.size() < kMinSteps) {
    fail(path, " has too few times of steps",
         fmt::format("at least {}", kMinSteps), std::to_string(seconds.size()));
  }
  seconds.erase(seconds.begin(),
                seconds.begin() + static_cast<int64_t>(seconds.size() / 10));
  if (std::ranges::min(seconds) <= 0) {
    fail(path, " has a step without duration", "times above 0",
         fmt::format("{}", std::ranges::min(seconds)));
  }
  return seconds;
}

}  // namespace

RunProfile read_run_profile(const std::string& path) {
  const auto run =
      parse_strict_json(path, read_file(path, kLargestReport), kLimits).root;
  if (!run.is_object()) {
    fail(path, " is not a report of a run", "an object", brief(run));
  }
  const double devices = number_at(path, run, "world_size", 1);
  if (devices != 1) {
    fail(path, " has steps that include an exchange between devices",
         "a run on one device", fmt::format("{} devices", devices));
  }
  RunProfile result;
  Profile& profile = result.profile;
  auto& measured = profile.stragglers.measured;
  measured = step_times(path, run);
  profile.compute_s = std::reduce(measured.begin(), measured.end()) /
                      static_cast<double>(measured.size());
  for (double& time : measured) time /= profile.compute_s;
  std::ranges::sort(measured);
  profile.gradient_bytes =
      kGradientBytes * number_at(path, run, "parameters", 1);
  const double tokens = number_at(path, run, "tokens_of_sample", 0);
  result.has_tokens = tokens > 0;
  profile.samples =
      number_at(path, run, "batch_size", 1) * std::max(1.0, tokens);
  const auto checkpoints = run.find("checkpoints");
  if (checkpoints != run.end() && checkpoints->is_object()) {
    const double saved = number_at(path, *checkpoints, "saved", 0);
    if (saved > 0) {
      result.checkpoint_s = number_at(path, *checkpoints, "stall_s", 0) / saved;
    }
  }
  return result;
}

}  // namespace lockstep::simulate
