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

}  // namespace

void FaultLog::add(const Failure* root, const std::string& why,
                   double began_s) {
  Fault fault{.time_s = unix_time_s(),
              .lasted_s = 0,
              .downtime_s = 0,
              .who = "another node",
              .why = why};
  if (root != nullptr) {
    fault.time_s = root->time_s;
    fault.who = fmt::format("rank {} on {}", root->rank, root->host);
    fault.why = root->how_it_ended();
    if (!root->message.empty()) fault.why += ": " + first_line(root->message);
  }
  fault.lasted_s = std::max(0.0, fault.time_s - began_s);
  faults_.push_back(std::move(fault));
}

void FaultLog::recovered(double time_s) {
  if (faults_.empty()) return;
  survived_ = faults_.size();
  faults_.back().downtime_s = std::max(0.0, time_s - faults_.back().time_s);
}

int FaultLog::quick_in_a_row() const {
  int count = 0;
  for (auto fault = faults_.rbegin();
       fault != faults_.rend() && fault->lasted_s < kQuickS; ++fault) {
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
        "    {}  {}: {} (after {:.1f} s; {:.1f} s until all ran again)\n",
        local_time(fault.time_s), fault.who, fault.why, fault.lasted_s,
        fault.downtime_s);
  }
  return text;
}

}  // namespace lockstep::launch
