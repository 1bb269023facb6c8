#include <algorithm>

#include <climits>
#include <fmt/format.h>

#include "lockstep/base/env.h"
#include "lockstep/base/error.h"
#include "lockstep/comm/host_list.h"
#include "lockstep/comm/launchers.h"

namespace lockstep {
namespace {

// From here on a step's number stands for a batch script, an interactive
// shell and the like, which is one process, whatever the job has room for.
constexpr int64_t kFirstSpecialStep = 0xfffffff0;

/// The step that srun started this process in.
std::optional<int64_t> step() {
  for (const char* name : {"SLURM_STEP_ID", "SLURM_STEPID"}) {
    if (const auto id = env_integer(name, 0)) {
      return *id < kFirstSpecialStep ? id : std::nullopt;
    }
  }
  return std::nullopt;
}

/// The one of the two that is set: a step may be smaller than its job.
std::string of_step_or_job(const std::string& step, const std::string& job) {
  return env(step) ? step : job;
}

}  // namespace

std::optional<Environment> slurm_environment() {
  const auto step_id = step();
  if (!step_id || !env("SLURM_PROCID")) return std::nullopt;
  const std::string launcher = "srun";
  Environment result;
  result.launcher = "slurm";
  result.world_size =
      launcher_number(of_step_or_job("SLURM_STEP_NUM_TASKS", "SLURM_NTASKS"), 1,
                      kMostRanks, launcher);
  result.rank =
      launcher_number("SLURM_PROCID", 0, result.world_size - 1, launcher);
  if (result.world_size == 1) return result;

  result.node_rank = launcher_number("SLURM_NODEID", 0, result.rank, launcher);
  const std::string tasks =
      of_step_or_job("SLURM_STEP_TASKS_PER_NODE", "SLURM_TASKS_PER_NODE");
  int total = 0;
  result.local_world_size = tasks_of_node(launcher_text(tasks, launcher), tasks,
                                          result.node_rank, total);
  if (total != result.world_size) {
    throw InvalidArgument(
        "env", {.code = ErrorCode::kBadVariable,
                .what = "the variable " + tasks + " is not this step's",
                .expected = fmt::format("{} ranks", result.world_size),
                .got = fmt::format("{} in '{}'", total,
                                   launcher_text(tasks, launcher)),
                .fix = "start the ranks with srun, and set none of its "
                       "variables"});
  }
  result.local_rank = launcher_number(
      "SLURM_LOCALID", 0, std::min(result.local_world_size - 1, result.rank),
      launcher);
  // A job that is put back into the queue keeps its number.
  result.run_id = fmt::format(
      "slurm-{}.{}.{}", launcher_number("SLURM_JOB_ID", 0, INT_MAX, launcher),
      *step_id, env_integer("SLURM_RESTART_COUNT", 0).value_or(0));
  result.master_ports = candidate_ports(result.run_id);
  if (result.local_world_size == result.world_size) {
    // Its name may not be known to the host itself.
    result.master_addr = "127.0.0.1";
  } else if (!env("MASTER_ADDR")) {
    const std::string hosts =
        of_step_or_job("SLURM_STEP_NODELIST", "SLURM_JOB_NODELIST");
    result.master_addr = first_host(launcher_text(hosts, launcher), hosts);
  }
  return result;
}

}  // namespace lockstep
