#include "lockstep/train/record/memory_recorder.h"

#include <set>
#include <unistd.h>

#include "lockstep/device/memory.h"
#include "lockstep/train/report/report_fields.h"

namespace lockstep::training {

void fields_of(Is<MemorySample> auto& sample, const auto& field) {
  field("step", sample.step);
  field("seconds", sample.seconds);
  field("held", sample.held_bytes);
  field("peak", sample.peak_bytes);
  field("host_held", sample.host_held_bytes);
  field("host_peak", sample.host_peak_bytes);
}

namespace {

/// The samples of a rank.
struct RankMemory {
  int64_t pid = 0;
  std::vector<MemorySample> samples;
};

void fields_of(Is<RankMemory> auto& rank, const auto& field) {
  field("pid", rank.pid);
  field("samples", rank.samples);
}

// Adds the devices of `rank` to `history`, which has the same steps.
void add_devices(const RankMemory& rank, bool has_host,
                 MemoryHistory& history) {
  const size_t devices =
      rank.samples.empty() ? 0 : rank.samples.back().held_bytes.size();
  for (size_t k = 0; k < devices; ++k) {
    auto& held = history.held_bytes.emplace_back();
    auto& peak = history.peak_bytes.emplace_back();
    for (const MemorySample& sample : rank.samples) {
      const bool is_charged = has_host && k == 0;
      held.push_back(sample.held_bytes.at(k) +
                     (is_charged ? sample.host_held_bytes : 0));
      peak.push_back(sample.peak_bytes.at(k) +
                     (is_charged ? sample.host_peak_bytes : 0));
    }
  }
}

}  // namespace

void MemoryRecorder::after_step(const RunState& at, const Metrics&) {
  // Reading the accounts takes time.
  if (!points_.takes(at.step)) return;
  const MemoryStats host = host_memory_stats();
  MemorySample sample{.step = at.step, .seconds = since_begin_.seconds()};
  for (const DeviceUse& device : devices_()) {
    sample.held_bytes.push_back(device.memory_bytes);
    sample.peak_bytes.push_back(device.memory_peak_bytes);
  }
  sample.host_held_bytes = host.live_bytes + host.cached_bytes;
  sample.host_peak_bytes = host.peak_bytes;
  points_.add(at.step, std::move(sample));
}

MemoryHistory MemoryRecorder::gather(const ProcessGroup& world) const {
  RankMemory own{.pid = ::getpid()};
  for (const auto& point : points_.points()) own.samples.push_back(point.value);
  const auto ranks = gather_from_ranks(world, own, "a rank's memory");
  MemoryHistory history;
  for (const MemorySample& sample : ranks[0].samples) {
    history.steps.push_back(sample.step);
    history.seconds.push_back(sample.seconds);
    if (world.size() > 1) continue;
    history.shared_bytes.push_back(sample.host_held_bytes);
  }
  std::set<int64_t> seen;
  for (const RankMemory& rank : ranks) {
    // If ranks are threads, the first rank stands for the process, as in the
    // peaks of the devices.
    const bool is_first_of_process = seen.insert(rank.pid).second;
    add_devices(rank, world.size() > 1 && is_first_of_process, history);
  }
  return history;
}

}  // namespace lockstep::training
