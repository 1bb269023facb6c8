#include "lockstep/train/record/live_status.h"

#include <algorithm>
#include <unistd.h>
#include <utility>

#include "lockstep/base/env.h"
#include "lockstep/base/error.h"
#include "lockstep/base/host_identity.h"

namespace lockstep::training {
namespace {

using monitor::Activity;

constexpr size_t kMaxLosses = 512;
constexpr size_t kMaxSpans = 20'000;
constexpr double kEvery_s = 0.5;

// Returns a rank's status before any step. The rest is filled in later.
monitor::RankStatus first_status(const ProcessGroup& world,
                                 const RunReport& report, int64_t total_steps) {
  monitor::RankStatus status;
  status.host = host_name();
  status.machine = monitor::machine();
  status.pid = ::getpid();
  status.process_start = monitor::process_start(status.pid);
  status.rank = world.rank();
  status.world_size = world.size();
  status.model = report.model;
  status.strategy = report.strategy;
  status.backend = world.size() > 1 ? world.backend_name() : "";
  status.step = report.first_step;
  status.total_steps = total_steps;
  // Restarts by the launcher, and recoveries within this process.
  status.restarts = report.recoveries +
                    env_integer("TORCHELASTIC_RESTART_COUNT", 0).value_or(0);
  status.started_at = monitor::now_s();
  return status;
}

/// Returns the seconds that `category` took on the lane of the steps since
/// `begin_ns`.
double seconds_of(const TraceLog& log, TraceCategory category,
                  int64_t begin_ns) {
  int64_t sum_ns = 0;
  int64_t covered_to = begin_ns;  // spans nest
  for (const TraceLog::Span& span : log.spans) {
    if (span.category != category || log.lanes[span.lane] != "main") continue;
    const int64_t begin = std::max(span.begin_ns, covered_to);
    if (span.end_ns <= begin) continue;
    sum_ns += span.end_ns - begin;
    covered_to = span.end_ns;
  }
  return static_cast<double>(sum_ns) / 1e9;
}

}  // namespace

LiveStatus::LiveStatus(const TrainOptions& options, const ProcessGroup& world,
                       const RunReport& report, int64_t total_steps,
                       std::function<std::vector<DeviceUse>()> devices)
    : status_(first_status(world, report, total_steps)),
      file_(world.all_gather_text(monitor::new_job_name())[0],
            options.out_dir(), world.rank()),
      batch_size_(options.batch_size()),
      devices_(std::move(devices)) {
  write();
}

LiveStatus::~LiveStatus() { enter(Activity::kEnded); }

void LiveStatus::enter(Activity activity) {
  status_.activity = activity;
  write();
}

void LiveStatus::before_evaluation(const RunState&) {
  enter(Activity::kEvaluating);
}

void LiveStatus::before_checkpoint(const RunState&) {
  enter(Activity::kSaving);
}

void LiveStatus::after_step(const RunState& at, const Metrics& metrics) {
  status_.activity = Activity::kTraining;
  status_.step = at.step;
  status_.epoch = at.epoch;
  steps_s_ += at.step_s;
  ++steps_;
  if (status_.rank == 0) keep_loss(at.step, metrics.at("loss"));
  if (since_published_.seconds() >= kEvery_s) publish();
}

void LiveStatus::keep_loss(int64_t step, double loss) {
  auto& losses = status_.losses;
  // Removes the points of steps that are repeated.
  while (!losses.empty() && losses.back().step >= step) losses.pop_back();
  // The last point is always the last step.
  const bool replaces =
      losses.size() > 1 && (losses.back().step - 1) % loss_every_ != 0;
  if (replaces) losses.pop_back();
  losses.push_back({.step = step, .loss = loss});
  if (losses.size() < kMaxLosses) return;
  loss_every_ *= 2;
  const auto is_dropped = [&](const monitor::LossPoint& point) {
    return (point.step - 1) % loss_every_ != 0 && point.step != step;
  };
  std::erase_if(losses, is_dropped);
}

void LiveStatus::publish() {
  const auto devices = devices_();
  const double elapsed_s = since_published_.seconds();
  since_published_ = Stopwatch();
  busy_before_s_.resize(devices.size());
  status_.devices.clear();
  for (size_t k = 0; k < devices.size(); ++k) {
    // The accounts may have been restarted, and then the time is smaller.
    const double busy_s = std::max(devices[k].busy_s - busy_before_s_[k], 0.0);
    busy_before_s_[k] = devices[k].busy_s;
    status_.devices.push_back(
        {.name = devices[k].name,
         .busy_fraction = steps_s_ > 0 ? std::min(busy_s / steps_s_, 1.0) : 0,
         .memory_bytes = devices[k].tensor_bytes,
         .memory_peak_bytes = devices[k].memory_peak_bytes});
  }
  status_.step_s = steps_ > 0 ? steps_s_ / static_cast<double>(steps_) : 0;
  status_.samples_per_s = static_cast<double>(steps_ * batch_size_) / elapsed_s;
  steps_s_ = 0;
  steps_ = 0;
  take_shares();
  write();
}

void LiveStatus::take_shares() {
  status_.wait_fraction.reset();
  status_.communication_fraction.reset();
  if (recording_) {
    const int64_t now_ns = trace_clock_ns();
    const TraceLog log = recording_->log();
    const double elapsed_s =
        static_cast<double>(now_ns - recorded_from_ns_) / 1e9;
    const auto share = [&](TraceCategory category) {
      return std::min(seconds_of(log, category, recorded_from_ns_) / elapsed_s,
                      1.0);
    };
    if (elapsed_s > 0) {
      status_.wait_fraction = share(TraceCategory::kWait);
      status_.communication_fraction = share(TraceCategory::kCommunication);
    }
  }
  if (!file_.is_watched()) {
    recording_.reset();
    return;
  }
  try {
    if (!recording_) {
      recording_.emplace(static_cast<int>(status_.rank), kMaxSpans);
    }
  } catch (const InvalidArgument&) {
    // A rank has at most one recording, and a TraceRecorder has it.
    return;
  }
  recorded_from_ns_ = trace_clock_ns();
  recording_->forget_before(recorded_from_ns_);
}

void LiveStatus::write() {
  status_.updated_at = monitor::now_s();
  file_.write(status_);
}

}  // namespace lockstep::training
