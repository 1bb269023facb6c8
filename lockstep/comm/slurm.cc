#include <algorithm>
#include <cstdint>

#include <climits>
#include <fmt/format.h>

#include "lockstep/base/env.h"
#include "lockstep/base/error.h"
#include "lockstep/base/format.h"
#include "lockstep/base/numbers.h"
#include "lockstep/comm/launchers.h"
#include "lockstep/store/socket_address.h"

namespace lockstep {
namespace {

// Step numbers from here on stand for a batch script, an interactive shell and
// the like, which is one process, regardless of the size of the job.
constexpr int64_t kFirstSpecialStep = 0xfffffff0;

/// Returns the step in which srun started this process.
std::optional<int64_t> step() {
  for (const char* name : {"SLURM_STEP_ID", "SLURM_STEPID"}) {
    if (const auto id = env_integer(name, 0)) {
      return *id < kFirstSpecialStep ? id : std::nullopt;
    }
  }
  return std::nullopt;
}

/// Returns the variable of the step if it is set, otherwise that of the job. A
/// step may be smaller than its job.
std::string step_or_job_variable(const std::string& step,
                                 const std::string& job) {
  return env(step) ? step : job;
}

constexpr std::string_view kDigits = "0123456789";
constexpr std::string_view kNameParts =
    "abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ0123456789.-_";
constexpr size_t kLongestName = 253;

[[noreturn]] void refuse(std::string_view variable, std::string_view expected,
                         std::string_view list) {
  throw InvalidArgument(
      "env",
      {.code = ErrorCode::kBadVariable,
       .what = fmt::format("can't use the variable {}", variable),
       .expected = std::string(expected),
       .got = fmt::format("'{}'{}", list.substr(0, 200),
                          list.size() > 200 ? "..." : ""),
       .fix = "set MASTER_ADDR and MASTER_PORT, or start with torchrun"});
}

/// Removes and returns the longest prefix of `text` made of `characters`.
std::string_view take(std::string_view& text, std::string_view characters) {
  const size_t end = std::min(text.find_first_not_of(characters), text.size());
  const std::string_view taken = text.substr(0, end);
  text.remove_prefix(end);
  return taken;
}

bool take(std::string_view& text, char character) {
  if (!text.starts_with(character)) return false;
  text.remove_prefix(1);
  return true;
}

/// Removes ranges such as "03-05,9]" and returns their first number, or "" if
/// `text` does not start with ranges.
std::string_view take_ranges(std::string_view& text) {
  std::string_view first;
  do {
    const std::string_view from = take(text, kDigits);
    if (first.empty()) first = from;
    if (from.empty()) return {};
    if (take(text, '-') && take(text, kDigits).empty()) return {};
  } while (take(text, ','));
  return take(text, ']') ? first : std::string_view();
}

/// Removes and returns a number of ranks, or 0 if there is no such number.
int take_count(std::string_view& text) {
  const auto count = parse_number<int>(take(text, kDigits));
  return count && *count <= kMaxRanks ? *count : 0;
}

}  // namespace

std::string first_host(std::string_view list, std::string_view variable) {
  constexpr std::string_view kExpected = "a list such as node[03-05,9],login";
  std::string_view rest = list;
  std::string host;
  while (!rest.empty() && rest.front() != ',') {
    // Several ranges may follow each other: rack[0-1]node[1-4].
    std::string_view part = take(rest, kNameParts);
    if (part.empty() && take(rest, '[')) part = take_ranges(rest);
    if (part.empty() || host.size() + part.size() > kLongestName) {
      refuse(variable, kExpected, list);
    }
    host += part;
  }
  // A name that starts with '-' could be taken for an option.
  if (host.empty() || host.front() == '-' || host.front() == '.') {
    refuse(variable, kExpected, list);
  }
  return host;
}

int tasks_of_node(std::string_view list, std::string_view variable, int node,
                  int& total) {
  constexpr std::string_view kExpected = "a list such as 2(x3),1";
  std::string_view rest = list;
  int64_t nodes = 0, tasks = 0;
  int result = 0;
  do {
    const int count = take_count(rest);
    int times = 1;
    if (take(rest, '(')) {
      times = take(rest, 'x') ? take_count(rest) : 0;
      if (!take(rest, ')')) times = 0;
    }
    if (count == 0 || times == 0) refuse(variable, kExpected, list);
    if (nodes <= node && node < nodes + times) result = count;
    nodes += times;
    tasks += int64_t{count} * times;
    if (tasks > kMaxRanks) {
      refuse(variable, fmt::format("up to {}", kMaxRanks), list);
    }
  } while (take(rest, ','));
  if (!rest.empty()) refuse(variable, kExpected, list);
  if (result == 0) {
    refuse(variable, fmt::format("one that has node {} (SLURM_NODEID)", node),
           list);
  }
  total = static_cast<int>(tasks);
  return result;
}

std::optional<Environment> slurm_environment() {
  const auto step_id = step();
  if (!step_id || !env("SLURM_PROCID")) return std::nullopt;
  const std::string launcher = "srun";
  Environment result;
  result.launcher = "slurm";
  result.world_size = launcher_number(
      step_or_job_variable("SLURM_STEP_NUM_TASKS", "SLURM_NTASKS"), 1,
      kMaxRanks, launcher);
  result.rank =
      launcher_number("SLURM_PROCID", 0, result.world_size - 1, launcher);
  if (result.world_size == 1) return result;

  result.node_rank = launcher_number("SLURM_NODEID", 0, result.rank, launcher);
  const std::string tasks =
      step_or_job_variable("SLURM_STEP_TASKS_PER_NODE", "SLURM_TASKS_PER_NODE");
  int total = 0;
  result.local_world_size = tasks_of_node(launcher_text(tasks, launcher), tasks,
                                          result.node_rank, total);
  if (total != result.world_size) {
    throw InvalidArgument(
        "env", {.code = ErrorCode::kBadVariable,
                .what = "the variable " + tasks + " is not this step's",
                .expected = counted(result.world_size, "rank"),
                .got = fmt::format("{} in '{}'", total,
                                   launcher_text(tasks, launcher)),
                .fix = "start the ranks with srun, and set none of its "
                       "variables"});
  }
  result.local_rank = launcher_number(
      "SLURM_LOCALID", 0, std::min(result.local_world_size - 1, result.rank),
      launcher);
  // A requeued job keeps its number.
  result.run_id = fmt::format(
      "slurm-{}.{}.{}", launcher_number("SLURM_JOB_ID", 0, INT_MAX, launcher),
      *step_id, env_integer("SLURM_RESTART_COUNT", 0).value_or(0));
  result.master_ports = candidate_ports(result.run_id);
  if (result.local_world_size == result.world_size) {
    // The host may not be able to resolve its own name.
    result.master_addr = store::loopback_host();
  } else if (!env("MASTER_ADDR")) {
    const std::string hosts =
        step_or_job_variable("SLURM_STEP_NODELIST", "SLURM_JOB_NODELIST");
    result.master_addr = first_host(launcher_text(hosts, launcher), hosts);
  }
  return result;
}

}  // namespace lockstep
