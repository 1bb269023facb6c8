#pragma once

#include <cstdint>
#include <string>
#include <unistd.h>

#include "lockstep/monitor/rank_status.h"

namespace lockstep::monitor {

/// Returns the status of a training rank, one of four, in this process.
inline RankStatus status_of_rank(int64_t rank) {
  return {.host = "box",
          .machine = machine(),
          .pid = ::getpid(),
          .process_start = process_start(::getpid()),
          .rank = rank,
          .world_size = 4,
          .model = "gpt-char",
          .strategy = "ddp",
          .backend = "shm",
          .activity = Activity::kTraining,
          .step = 1204,
          .total_steps = 5000,
          .epoch = 3,
          .step_s = 0.04,
          .samples_per_s = 1450,
          .wait_fraction = 0.03,
          .communication_fraction = 0.05,
          .devices = {{.name = "cpu:" + std::to_string(rank),
                       .busy_fraction = 0.8,
                       .memory_bytes = 120 << 20,
                       .memory_peak_bytes = 130 << 20}},
          .restarts = 1,
          .started_at = 1e9,
          .updated_at = 1e9 + 100,
          .losses = {{.step = 1, .loss = 4.5}, {.step = 1204, .loss = 1.5}}};
}

}  // namespace lockstep::monitor
