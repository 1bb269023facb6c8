#include "lockstep/train/step/step_accounts.h"

#include <algorithm>
#include <unistd.h>

#include "lockstep/device/memory.h"
#include "lockstep/parallel/group/replica_group.h"
#include "lockstep/train/report/report_fields.h"

namespace lockstep::training {
namespace {

PhaseReport report_of(const PhaseTimes& times) {
  return {.scatter = times.scatter_s,
          .replicate = times.replicate_s,
          .forward = times.forward_s,
          .gather = times.gather_s,
          .backward = times.backward_s,
          .reduce = times.reduce_s,
          .update = times.update_s};
}

}  // namespace

void fields_of(Is<RankReport> auto& report, const auto& field) {
  field("devices", report.devices);
  field("phases", report.phases_s);
  field("pid", report.pid);
  field("sent_bytes", report.sent_bytes);
  field("peak_flops_per_s", report.peak_flops_per_s);
  field("host_memory_bytes", report.host_memory_bytes);
}

std::vector<RankReport> gather_reports(const ProcessGroup& world,
                                       const RankReport& own) {
  return gather_from_ranks(world, own, "a rank's report");
}

StepAccounts::StepAccounts(Engine& engine, StepStrategy& strategy,
                           const Plan& plan, const ProcessGroup& world)
    : engine_(engine), strategy_(strategy), plan_(plan), world_(world) {
  restart();
}

void StepAccounts::restart() {
  samples_.assign(plan_.devices.size(), 0);
  sent_before_ = world_.sent_bytes();
  phases_s_ = {};
  steps_ = 0;
  strategy_.restart_accounts();
  for (const auto& worker : engine_.group().workers()) worker->reset_busy();
  reset_peak_memory();
}

void StepAccounts::count(int64_t samples) {
  const auto split = engine_.group().split(samples);
  const size_t first =
      static_cast<size_t>(engine_.group().rank()) * samples_.size();
  for (size_t k = 0; k < samples_.size() && first + k < split.size(); ++k) {
    samples_[k] += split[first + k];
  }
  const PhaseReport step = report_of(engine_.group().clock().times());
  for (const Phase& phase : kPhases) {
    phases_s_.*phase.seconds += step.*phase.seconds;
  }
  ++steps_;
}

std::vector<DeviceUse> StepAccounts::device_use() const {
  std::vector<DeviceUse> use;
  for (size_t k = 0; k < plan_.devices.size(); ++k) {
    const MemoryStats memory = memory_stats(plan_.devices[k]);
    // Memory copied for other ranks is not charged to any device.
    const int64_t copied = k == 0 ? engine_.copy_bytes() : 0;
    use.push_back(
        {.name = plan_.devices[k].name(),
         .busy_s = engine_.group().workers()[k]->busy_s() +
                   strategy_.main_thread_s(k),
         .memory_bytes = memory.live_bytes + memory.cached_bytes + copied,
         .tensor_bytes = memory.live_bytes + copied,
         .memory_peak_bytes = memory.peak_bytes + copied});
  }
  return use;
}

RankReport StepAccounts::report(double step_seconds) const {
  const double steps = static_cast<double>(std::max<int64_t>(steps_, 1));
  RankReport report;
  report.pid = ::getpid();
  report.sent_bytes = world_.sent_bytes() - sent_before_;
  report.host_memory_bytes = host_memory_stats().peak_bytes;
  for (const Phase& phase : kPhases) {
    report.phases_s.*phase.seconds = phases_s_.*phase.seconds / steps;
  }
  const auto use = device_use();
  for (size_t k = 0; k < use.size(); ++k) {
    report.devices.push_back(
        {.name = use[k].name,
         .samples = samples_[k],
         .busy_fraction =
             step_seconds > 0 ? std::min(use[k].busy_s / step_seconds, 1.0) : 0,
         .memory_peak_bytes = use[k].memory_peak_bytes,
         .gradient_copy_bytes = k == 0 ? engine_.copy_bytes() : 0});
  }
  return report;
}

}  // namespace lockstep::training
