#include "lockstep/launch/fault_log.h"

#include <algorithm>
#include <cmath>

#include <fmt/format.h>

#include "lockstep/base/first_line.h"
#include "lockstep/launch/clock.h"

namespace lockstep::launch {
namespace {

constexpr double kQuickS = 10;
constexpr double kLongestDelayS = 30;
constexpr int kSameStep = 3;

}  // namespace

void FaultLog::add(const Failure* root, const std::string& why, double began_s,
                   std::optional<uint64_t> steps) {
  Fault fault{.time_s = unix_time_s(),
              .lasted_s = 0,
              .downtime_s = 0,
              .who = {},
              .why = why};
  if (root != nullptr) {
    fault.time_s = root->time_s;
    fault.who = fmt::format("rank {} on {}", root->rank, root->host);
    fault.why = root->how_it_ended();
    if (!root->message.empty()) fault.why += ": " + first_line(root->message);
  }
  fault.lasted_s = std::max(0.0, fault.time_s - began_s);
  fault.steps = steps;
  fault.got_on = steps && first_step_ && *steps > *first_step_;
  first_step_.reset();
  faults_.push_back(std::move(fault));
}

void FaultLog::recovered(double time_s) {
  if (faults_.empty()) return;
  survived_ = faults_.size();
  faults_.back().downtime_s = std::max(0.0, time_s - faults_.back().time_s);
}

void FaultLog::went_on(double time_s, uint64_t steps) {
  first_step_ = steps;
  if (faults_.empty()) return;
  Fault& last = faults_.back();
  last.downtime_s = std::max(0.0, time_s - last.time_s);
  if (last.steps && *last.steps >= steps) last.repeated = *last.steps - steps;
}

bool FaultLog::is_stuck() const {
  if (faults_.size() < kSameStep) return false;
  const auto& steps = faults_.back().steps;
  return steps &&
         std::all_of(faults_.end() - kSameStep, faults_.end(),
                     [&](const Fault& one) { return one.steps == steps; });
}

std::string FaultLog::why_stuck() const {
  return fmt::format(
      "[launch] no other restart: it failed {} times in a row after step {}, "
      "so the cause is in the program or its data\n",
      kSameStep, faults_.back().steps.value_or(0));
}

int FaultLog::quick_in_a_row() const {
  int count = 0;
  for (auto fault = faults_.rbegin();
       fault != faults_.rend() && fault->lasted_s < kQuickS && !fault->got_on;
       ++fault) {
    ++count;
  }
  return count;
}

double FaultLog::delay_s() const {
  const int quick = quick_in_a_row();
  // One may be an accident.
  return quick < 2 ? 0 : std::min(std::exp2(quick - 2), kLongestDelayS);
}

std::string FaultLog::text() const {
  if (survived_ == 0) return {};
  std::string text = fmt::format("[launch] {} failure{} survived\n", survived_,
                                 survived_ == 1 ? "" : "s");
  for (size_t i = 0; i < survived_; ++i) {
    const Fault& fault = faults_[i];
    text += fmt::format(
        "    {}  {}{} (after {:.1f} s{}; {:.1f} s until all ran again{})\n",
        local_time(fault.time_s), fault.who.empty() ? "" : fault.who + ": ",
        fault.why, fault.lasted_s,
        fault.steps ? fmt::format(" and {} steps", *fault.steps) : "",
        fault.downtime_s,
        fault.repeated ? fmt::format(", {} steps lost", *fault.repeated) : "");
  }
  return text;
}

}  // namespace lockstep::launch
