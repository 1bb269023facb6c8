#include "lockstep/launch/workers/worker_team.h"

#include <algorithm>
#include <cerrno>
#include <csignal>
#include <cstring>
#include <utility>

#include <fmt/format.h>
#include <fmt/ranges.h>

#include "lockstep/base/cores.h"
#include "lockstep/base/env.h"
#include "lockstep/base/error.h"
#include "lockstep/base/host_identity.h"
#include "lockstep/base/process.h"
#include "lockstep/launch/failure/clock.h"
#include "lockstep/launch/options/gpus.h"
#include "lockstep/launch/options/option_values.h"
#include "lockstep/launch/options/program_command.h"
#include "lockstep/shm/futex.h"

namespace lockstep::launch {
namespace {

bool is_shown(const RunOptions& options, int local_rank) {
  const auto& shown = options.shown_ranks;
  return shown.empty() ||
         std::find(shown.begin(), shown.end(), local_rank) != shown.end();
}

// Returns the label of each line.
std::string label(const RunOptions& options, const Group& group,
                  int local_rank) {
  const bool is_wanted =
      options.label_lines == LabelLines::kAuto
          ? group.world_size() > 1 || !options.label_template.empty()
          : options.label_lines == LabelLines::kOn;
  if (!is_wanted) return {};
  const std::string rank = std::to_string(group.first_rank() + local_rank);
  if (options.label_template.empty()) return "[rank " + rank + "] ";
  return fill_template(options.label_template,
                       {{"role_name", options.role},
                        {"local_rank", std::to_string(local_rank)},
                        {"rank", rank},
                        {"hostname", host_name()}});
}

StreamPlan plan_stream(const RunOptions& options, const Group& group,
                       const LogFiles& logs, int local_rank, Streams which) {
  const bool is_out = which == Streams::kOut;
  const bool is_teed = has(options.tee.of(local_rank), which);
  const bool is_redirected =
      !is_teed && has(options.redirects.of(local_rank), which);
  StreamPlan plan;
  plan.is_redirected = is_redirected;
  plan.is_shown = !is_redirected && is_shown(options, local_rank);
  plan.label = label(options, group, local_rank);
  const bool is_alone =
      options.workers == 1 || (options.is_stdout_raw && is_out);
  const auto& filters =
      is_out ? options.stdout_filters : options.stderr_filters;
  if (is_teed && !filters.empty()) {
    plan.filtered_path =
        logs.attempt_folder() +
        (is_out ? "/filtered_stdout.log" : "/filtered_stderr.log");
    plan.filters = filters;
  }
  plan.is_raw = plan.label.empty() && is_alone && plan.filters.empty();
  if (is_teed || is_redirected) {
    plan.log_path = logs.file(local_rank, is_out ? "stdout.log" : "stderr.log");
  }
  return plan;
}

// A worker ignores no signal, even if the agent does. The exception is SIGHUP,
// which is ignored if the agent was started with nohup.
std::vector<int> signals_but_hangup() {
  std::vector<int> signals;
  for (int signal = 1; signal < NSIG; ++signal) {
    if (signal != SIGHUP) signals.push_back(signal);
  }
  return signals;
}

ChildProcess start_worker(const ChildOptions& plan) {
  try {
    return ChildProcess(plan);
  } catch (const ProcessStartError& error) {
    std::string fix;
    switch (error.error()) {
      case ENOEXEC:
        fix = "a script needs a first line like #!/bin/sh";
        break;
      case ENOENT:
        fix = "its interpreter is missing: see its first line";
        break;
      case EAGAIN:
        fix = "raise the limit of processes: ulimit -u";
        break;
    }
    throw LaunchError({.code = ErrorCode::kProcessStart,
                       .what = "can't start the program '" + plan.program + "'",
                       .got = std::strerror(error.error()),
                       .fix = fix});
  }
}

std::vector<int> equal_part(const RunOptions& options, int local_rank) {
  return core_share(allowed_cores(), static_cast<size_t>(local_rank),
                    static_cast<size_t>(options.workers));
}

// Returns the number of cores that a worker has for its threads.
size_t core_count(const RunOptions& options, int local_rank) {
  return options.bound_cores.per_worker.empty()
             ? equal_part(options, local_rank).size()
             : options.bound_cores.share(local_rank);
}

// Returns the cores to which a worker is pinned, or none.
std::vector<int> cores_to_pin(const RunOptions& options, int local_rank) {
  const auto& bound = options.bound_cores.per_worker;
  if (!bound.empty()) return bound[static_cast<size_t>(local_rank)];
  return options.pins_cores ? equal_part(options, local_rank)
                            : std::vector<int>();
}

// Returns the cores that Lockstep's workers divide into slices, in order of
// local rank, or none if each worker has to use those that it is pinned to.
std::vector<int> cores_of_job(const RunOptions& options) {
  if (!options.bound_cores.per_worker.empty()) {
    // No thread of a worker with a GPU may leave the cores near it.
    return options.is_bound_to_gpus ? std::vector<int>()
                                    : options.bound_cores.by_share();
  }
  return options.pins_cores ? allowed_cores() : std::vector<int>();
}

int shown_local_rank(const RunOptions& options, int local_rank) {
  return options.has_virtual_local_rank ? 0 : local_rank;
}

std::string joined(const std::vector<int>& signals) {
  std::string names;
  for (const int signal : signals) {
    names += (names.empty() ? "" : ",") + signal_name(signal);
  }
  return names;
}

}  // namespace

std::map<std::string, std::string> worker_variables(
    const RunOptions& options, const Group& group, const Endpoint& master,
    int local_rank, int attempt, size_t core_count,
    const std::string& error_file) {
  std::map<std::string, std::string> variables = options.environment;
  const auto set = [&](const char* name, const std::string& value) {
    variables[name] = value;
  };
  const auto number = [&](const char* name, int value) {
    set(name, std::to_string(value));
  };
  if (options.has_virtual_local_rank) {
    for (const auto& [name, value] : variables_of_own_gpu(local_rank)) {
      variables[name] = value;
    }
  }
  number("LOCAL_RANK", shown_local_rank(options, local_rank));
  number("RANK", group.first_rank() + local_rank);
  number("GROUP_RANK", group.node_rank);
  number("ROLE_RANK", group.first_role_rank() + local_rank);
  set("ROLE_NAME", options.role);
  number("LOCAL_WORLD_SIZE", options.workers);
  number("WORLD_SIZE", group.world_size());
  number("GROUP_WORLD_SIZE", static_cast<int>(group.nodes.size()));
  number("ROLE_WORLD_SIZE", group.role_world_size());
  set("MASTER_ADDR", master.host);
  number("MASTER_PORT", master.port);
  number("TORCHELASTIC_RESTART_COUNT", attempt);
  number("TORCHELASTIC_MAX_RESTARTS", options.max_restarts);
  set("TORCHELASTIC_RUN_ID", options.run_id);
  // The agents' store requires a proof of the secret, which c10d::TCPStore
  // can't give.
  set("TORCHELASTIC_USE_AGENT_STORE", "False");
  set("TORCHELASTIC_SIGNALS_TO_HANDLE", joined(options.signals));
  set("TORCHELASTIC_ERROR_FILE", error_file);
  if (const auto cores = cores_of_job(options); !cores.empty()) {
    set(kCoresVariable, fmt::format("{}", fmt::join(cores, ",")));
  }
  // A value that the user set is kept.
  if (!env("TORCH_NCCL_ASYNC_ERROR_HANDLING")) {
    variables.try_emplace("TORCH_NCCL_ASYNC_ERROR_HANDLING", "1");
  }
  if (options.omp_threads > 0) {
    number("OMP_NUM_THREADS", options.omp_threads);
  } else if (!env("OMP_NUM_THREADS")) {
    variables.try_emplace("OMP_NUM_THREADS", std::to_string(core_count));
  }
  return variables;
}

WorkerTeam::WorkerTeam(const RunOptions& options,
                       const std::vector<std::string>& command,
                       const LogFiles& logs, const control::ControlBlock& block,
                       Console& out, Console& err)
    : options_(options),
      command_(command),
      logs_(logs),
      block_(block),
      out_(out),
      err_(err) {}

void WorkerTeam::begin(const Group& group, const Endpoint& master,
                       int attempt) {
  std::vector<Worker> former = std::move(workers_);
  workers_.clear();
  std::vector<int> waiting;
  for (int rank = 0; rank < options_.workers; ++rank) {
    const auto index = static_cast<size_t>(rank);
    if (index < former.size() && former[index].waits) {
      waiting.push_back(rank);
      workers_.push_back(std::move(former[index]));
      Worker& worker = workers_.back();
      worker.rank = group.first_rank() + rank;
      worker.waits = false;
      worker.out.relabel(label(options_, group, rank));
      worker.err.relabel(label(options_, group, rank));
      continue;
    }
    if (index < former.size()) {
      leftovers_.remove_worker(former[index].process.pid());
    }
    assign_rank(group, attempt, rank);
    workers_.push_back(start(group, master, attempt, rank));
  }
  // The waiting workers continue last, when nothing else can fail.
  for (const int rank : waiting) {
    assign_rank(group, attempt, rank);
    shm::futex_wake(block_.slot(rank).attempt);
  }
}

void WorkerTeam::assign_rank(const Group& group, int attempt,
                             int local_rank) const {
  control::WorkerSlot& slot = block_.slot(local_rank);
  slot.assignment = {.attempt = attempt,
                     .rank = group.first_rank() + local_rank,
                     .world_size = group.world_size(),
                     .local_rank = shown_local_rank(options_, local_rank),
                     .local_world_size = options_.workers,
                     .node_rank = group.node_rank};
  slot.steps = 0;
  slot.collectives = 0;
  slot.heartbeat_ns = 0;
  slot.phase = control::Phase::kStart;
  slot.attempt = static_cast<uint32_t>(attempt) + 1;
}

ChildOptions WorkerTeam::process_plan(
    const std::map<std::string, std::string>& variables) const {
  ChildOptions plan;
  plan.program = find_program(command_.front(), options_.environment);
  plan.arguments = command_;
  plan.environment = merged_environment(variables);
  plan.default_signals = signals_but_hangup();
  plan.dies_with_thread = true;
  return plan;
}

std::vector<WorkerStream*> WorkerTeam::streams() {
  std::vector<WorkerStream*> all;
  for (Worker& worker : workers_) {
    all.push_back(&worker.out);
    all.push_back(&worker.err);
  }
  return all;
}

Worker WorkerTeam::start(const Group& group, const Endpoint& master,
                         int attempt, int local_rank) {
  const std::string folder = logs_.folder(local_rank);
  auto variables = worker_variables(options_, group, master, local_rank,
                                    attempt, core_count(options_, local_rank),
                                    folder + "/error.json");
  variables[control::kAgentVariable] = block_.variable(local_rank);
  WorkerStream to_out(
      plan_stream(options_, group, logs_, local_rank, Streams::kOut), out_);
  WorkerStream to_err(
      plan_stream(options_, group, logs_, local_rank, Streams::kErr), err_);
  control::WorkerSlot& slot = block_.slot(local_rank);
  slot.can_wait = 0;
  slot.waits_after = 0;
  ChildOptions plan = process_plan(variables);
  plan.cores = cores_to_pin(options_, local_rank);
  plan.out_fd = to_out.worker_end();
  plan.err_fd = to_err.worker_end();
  ChildProcess process = start_worker(plan);
  leftovers_.add_worker(process.pid());
  to_out.close_worker_end();
  to_err.close_worker_end();
  return {.rank = group.first_rank() + local_rank,
          .local_rank = local_rank,
          .out = std::move(to_out),
          .err = std::move(to_err),
          .process = std::move(process),
          .folder = folder};
}

bool WorkerTeam::is_at_work() const {
  return std::any_of(workers_.begin(), workers_.end(),
                     [](const Worker& worker) {
                       return worker.process.is_running() && !worker.waits;
                     });
}

bool WorkerTeam::is_alive() const {
  return std::any_of(
      workers_.begin(), workers_.end(),
      [](const Worker& worker) { return worker.process.is_running(); });
}

int WorkerTeam::count_waiting() const {
  return static_cast<int>(
      std::count_if(workers_.begin(), workers_.end(),
                    [](const Worker& worker) { return worker.waits; }));
}

bool WorkerTeam::note_ends() {
  bool has_failed = false;
  for (Worker& worker : workers_) {
    if (worker.ended_at) continue;
    const auto& end = worker.process.poll_end();
    if (!end) continue;
    worker.end = *end;
    worker.ended_at = Moment::now();
    worker.waits = false;
    has_failed = has_failed || worker.has_failed();
  }
  return has_failed;
}

void WorkerTeam::note_waits() {
  for (Worker& worker : workers_) {
    const control::WorkerSlot& slot = slot_of(worker);
    worker.waits = worker.process.is_running() &&
                   slot.waits_after.load() == slot.attempt.load();
  }
}

void WorkerTeam::send(int signal, Targets targets) const {
  for (const Worker& worker : workers_) {
    if (targets != Targets::kAll && worker.waits) continue;
    const bool will_wait =
        worker.process.is_running() && slot_of(worker).can_wait.load() != 0;
    if (targets == Targets::kWillNotWait && will_wait) continue;
    worker.process.send(signal);
    if (signal != SIGKILL) worker.process.send(SIGCONT);
  }
}

void WorkerTeam::kill_leftovers() const {
  for (const Worker& worker : workers_) {
    if (!worker.process.is_running()) worker.process.send(SIGKILL);
  }
  leftovers_.kill_all();
}

}  // namespace lockstep::launch
