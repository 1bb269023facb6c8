#include "lockstep/parallel/group/step_clock.h"

#include <algorithm>
#include <array>

namespace lockstep {

double PhaseTimes::*StepClock::time_of(Phase phase) {
  constexpr std::array kTimes{&PhaseTimes::replicate_s, &PhaseTimes::forward_s,
                              &PhaseTimes::backward_s,  &PhaseTimes::scatter_s,
                              &PhaseTimes::gather_s,    &PhaseTimes::reduce_s,
                              &PhaseTimes::update_s};
  return kTimes.at(static_cast<size_t>(phase));
}

void StepClock::restart() {
  caller_ = {};
  shards_.assign(shards_.size(), {});
}

PhaseTimes StepClock::times() const {
  PhaseTimes times = caller_;
  const auto total = [](const PhaseTimes& worker) {
    return worker.replicate_s + worker.forward_s + worker.backward_s;
  };
  const auto slowest = std::max_element(
      shards_.begin(), shards_.end(),
      [&](const auto& a, const auto& b) { return total(a) < total(b); });
  if (slowest == shards_.end()) return times;
  times.replicate_s = slowest->replicate_s;
  times.forward_s = slowest->forward_s;
  times.backward_s = slowest->backward_s;
  return times;
}

}  // namespace lockstep
