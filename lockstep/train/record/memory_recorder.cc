#include "lockstep/train/record/memory_recorder.h"

#include <set>
#include <unistd.h>

#include "lockstep/base/error.h"
#include "lockstep/base/json.h"
#include "lockstep/device/memory.h"

namespace lockstep::train {

using nlohmann::json;

namespace {

// Adds the devices of `rank` to `history`, which has the same points.
void add_rank(const json& rank, bool has_host, MemoryHistory& history) {
  const size_t devices = rank.at("devices");
  const auto& points = rank.at("points");
  for (size_t k = 0; k < devices; ++k) {
    auto& held = history.held_bytes.emplace_back();
    auto& peak = history.peak_bytes.emplace_back();
    for (const auto& point : points) {
      const bool is_charged = has_host && k == 0;
      held.push_back(point.at("held").at(k).get<int64_t>() +
                     (is_charged ? point.at("host_held").get<int64_t>() : 0));
      peak.push_back(point.at("peak").at(k).get<int64_t>() +
                     (is_charged ? point.at("host_peak").get<int64_t>() : 0));
    }
  }
}

}  // namespace

void MemoryRecorder::after_step(const RunState& at, const Metrics&) {
  // Reading the accounts takes time.
  if (!points_.takes(at.step)) return;
  const MemoryStats host = host_memory_stats();
  Sample sample{.seconds = since_begin_.seconds()};
  for (const DeviceUse& device : devices_()) {
    sample.held_bytes.push_back(device.memory_bytes);
    sample.peak_bytes.push_back(device.memory_peak_bytes);
  }
  sample.host_held_bytes = host.live_bytes + host.cached_bytes;
  sample.host_peak_bytes = host.peak_bytes;
  points_.add(at.step, std::move(sample));
}

json MemoryRecorder::to_json() const {
  json list = json::array();
  size_t devices = 0;
  for (const auto& [step, sample] : points_.points()) {
    devices = sample.held_bytes.size();
    list.push_back({{"step", step},
                    {"seconds", sample.seconds},
                    {"held", sample.held_bytes},
                    {"peak", sample.peak_bytes},
                    {"host_held", sample.host_held_bytes},
                    {"host_peak", sample.host_peak_bytes}});
  }
  return {{"pid", ::getpid()}, {"devices", devices}, {"points", list}};
}

MemoryHistory MemoryRecorder::gather(const ProcessGroup& world) const {
  MemoryHistory history;
  const auto texts = world.all_gather_text(to_json().dump());
  try {
    std::set<int64_t> seen;
    for (size_t rank = 0; rank < texts.size(); ++rank) {
      const json of_rank = parse_json(texts[rank]);
      if (rank == 0) {
        for (const auto& point : of_rank.at("points")) {
          history.steps.push_back(point.at("step"));
          history.seconds.push_back(point.at("seconds"));
          if (world.size() > 1) continue;
          history.shared_bytes.push_back(point.at("host_held"));
        }
      }
      // If ranks are threads, the first rank stands for the process, as in the
      // peaks of the devices.
      const bool is_first_of_process =
          seen.insert(of_rank.at("pid").get<int64_t>()).second;
      add_rank(of_rank, world.size() > 1 && is_first_of_process, history);
    }
  } catch (const json::exception& error) {
    throw TrainError({.code = ErrorCode::kMalformedData,
                      .what = "a rank's memory can't be read",
                      .got = lockstep::text_of(error),
                      .fix = "run the same build of Lockstep on every rank"});
  }
  return history;
}

}  // namespace lockstep::train
