#include "lockstep/train/record/step_recorder.h"

#include <utility>

namespace lockstep::train {

StepRecorder::StepRecorder(const World& world, std::vector<Device> devices,
                           int64_t steps)
    : world_(world),
      devices_(std::move(devices)),
      steps_(static_cast<size_t>(steps)),
      recording_(world.rank()) {}

void StepRecorder::begin_step(int64_t begin_ns) {
  begins_ns_.push_back(begin_ns);
  if (begins_ns_.size() > steps_) begins_ns_.pop_front();
  recording_.forget_before(begins_ns_.front());
}

void StepRecorder::restart() {
  begins_ns_.clear();
  recording_.forget_before(trace_clock_ns());
}

RankTrace StepRecorder::own() const {
  return trace_of_rank(world_, devices_, recording_.log());
}

std::vector<RankTrace> StepRecorder::gather() const {
  return gather_traces(world_, own());
}

}  // namespace lockstep::train
