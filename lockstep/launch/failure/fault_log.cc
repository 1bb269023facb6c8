#include "lockstep/launch/failure/fault_log.h"

#include <algorithm>
#include <cmath>

#include <fmt/format.h>

#include "lockstep/base/format.h"
#include "lockstep/base/text.h"
#include "lockstep/launch/failure/clock.h"

namespace lockstep::launch {
namespace {

constexpr double kQuickS = 10;
constexpr double kLongestDelayS = 30;
constexpr int kSameStep = 3;

}  // namespace

void FaultLog::add(const AttemptEnd& end) {
  Fault fault{.time_s = unix_time_s(),
              .failed_s = end.failed_s,
              .lasted_s = std::max(0.0, end.failed_s - end.began_s),
              .downtime_s = 0,
              .who = {},
              .why = end.why};
  if (const Failure* root = end.root) {
    fault.time_s = root->time_s;
    fault.who = fmt::format("rank {} on {}", root->rank, root->host);
    fault.why = root->how_it_ended();
    if (!root->message.empty()) fault.why += ": " + first_line(root->message);
  }
  const bool is_known = end.root != nullptr && !end.root->is_consequence;
  fault.is_of_program =
      is_known ? !end.root->is_from_outside() : !end.is_node_lost;
  fault.steps = end.steps;
  fault.made_progress = end.steps && first_step_ && *end.steps > *first_step_;
  first_step_.reset();
  faults_.push_back(std::move(fault));
}

void FaultLog::recovered(double now_s) {
  if (faults_.empty()) return;
  survived_ = faults_.size();
  faults_.back().downtime_s = now_s - faults_.back().failed_s;
}

void FaultLog::began_training(double now_s, uint64_t steps) {
  first_step_ = steps;
  if (faults_.empty()) return;
  Fault& last = faults_.back();
  last.downtime_s = now_s - last.failed_s;
  if (last.steps && *last.steps >= steps) last.repeated = *last.steps - steps;
}

bool FaultLog::is_stuck() const {
  if (faults_.empty() || !faults_.back().is_of_program) return false;
  const auto& steps = faults_.back().steps;
  if (!steps) return false;
  int count = 0;
  for (auto fault = faults_.rbegin(); fault != faults_.rend(); ++fault) {
    // The program once got further than this step, so it need not fail there
    // again.
    if (fault->steps != steps &&
        (fault->is_of_program || !fault->steps || *fault->steps > *steps)) {
      break;
    }
    if (fault->is_of_program && ++count == kSameStep) return true;
  }
  return false;
}

std::string FaultLog::why_stuck() const {
  return fmt::format(
      "[launch] no further restart: it failed {} times in a row after step {}, "
      "so the cause is in the program or its data\n",
      kSameStep, faults_.back().steps.value_or(0));
}

int FaultLog::quick_in_a_row() const {
  int count = 0;
  for (auto fault = faults_.rbegin();
       fault != faults_.rend() && fault->lasted_s < kQuickS &&
       !fault->made_progress;
       ++fault) {
    ++count;
  }
  return count;
}

double FaultLog::delay_s() const {
  const int quick = quick_in_a_row();
  // A single quick failure may be an accident.
  return quick < 2 ? 0 : std::min(std::exp2(quick - 2), kLongestDelayS);
}

std::string FaultLog::text() const {
  if (survived_ == 0) return {};
  std::string text =
      fmt::format("[launch] {} survived\n",
                  counted(static_cast<int64_t>(survived_), "failure"));
  for (size_t i = 0; i < survived_; ++i) {
    const Fault& fault = faults_[i];
    text += fmt::format(
        "    {}  {}{} (after {:.1f} s{}; {:.1f} s until all ran again{})\n",
        local_time(fault.time_s), fault.who.empty() ? "" : fault.who + ": ",
        fault.why, fault.lasted_s,
        fault.steps
            ? " and " + counted(static_cast<int64_t>(*fault.steps), "step")
            : "",
        fault.downtime_s,
        fault.repeated
            ? fmt::format(
                  ", {} lost",
                  counted(static_cast<int64_t>(*fault.repeated), "step"))
            : "");
  }
  return text;
}

}  // namespace lockstep::launch
