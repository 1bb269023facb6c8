#include "lockstep/train/record/trace_recorder.h"

#include <utility>

#include "lockstep/base/error.h"

namespace lockstep::training {
namespace {

// Without a trace, a run records its steps 2 to 11. The time line of its report
// shows the typical one among the last of them. Recording takes 0.1 us per
// span, so later steps are not recorded.
constexpr int64_t kFirstSteps = 11;
constexpr int64_t kCandidates = 5;

}  // namespace

StepRecorder::StepRecorder(const ProcessGroup& world,
                           std::vector<Device> devices, int64_t steps)
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

TraceRecorder::TraceRecorder(const ProcessGroup& world,
                             const std::vector<Device>& devices,
                             const LogOptions& options, int64_t step)
    : world_(world),
      devices_(devices),
      has_trace_(!options.trace().empty()),
      first_step_(step) {
  try {
    recorder_.emplace(world, devices,
                      has_trace_ ? options.trace_steps() : kCandidates);
  } catch (const InvalidArgument&) {
    // Another run in this process has the same rank and is already recording.
    if (has_trace_) throw;
  }
}

void TraceRecorder::before_batch(const RunState& at) {
  // The first step is warm-up. It is kept only if there is no other step.
  if (recorder_ && at.step == first_step_ + 1) recorder_->restart();
  begin_ns_ = trace_clock_ns();
}

void TraceRecorder::before_step(const RunState&) {
  if (recorder_) recorder_->begin_step(begin_ns_);
}

void TraceRecorder::after_step(const RunState& at, const Metrics&) {
  if (!has_trace_ && at.step >= first_step_ + kFirstSteps) stop();
}

void TraceRecorder::stop() {
  if (!recorder_) return;
  recorded_ = recorder_->own();
  recorder_.reset();
}

std::vector<RankTrace> TraceRecorder::gather() const {
  const RankTrace own = recorded_.value_or(trace_of_rank(world_, devices_, {}));
  return has_trace_ ? gather_traces(world_, own)
                    : gather_typical_step(world_, own);
}

}  // namespace lockstep::training
