#include "lockstep/launch/worker_team.h"

#include <algorithm>
#include <csignal>
#include <cstdlib>
#include <utility>

#include <fmt/format.h>

#include "lockstep/base/cpu_set.h"
#include "lockstep/base/env.h"
#include "lockstep/launch/clock.h"
#include "lockstep/launch/core_share.h"
#include "lockstep/launch/program_command.h"
#include "lockstep/launch/worker_environment.h"

namespace lockstep::launch {
namespace {

bool is_shown(const RunOptions& options, int local_rank) {
  const auto& shown = options.shown_ranks;
  return shown.empty() ||
         std::find(shown.begin(), shown.end(), local_rank) != shown.end();
}

void replace_all(std::string& text, const std::string& from,
                 const std::string& to) {
  for (size_t at = 0; (at = text.find(from, at)) != std::string::npos;) {
    text.replace(at, from.size(), to);
    at += to.size();
  }
}

// What stands before each line; torchrun's own variable may say.
std::string label(const RunOptions& options, const Group& group,
                  int local_rank) {
  const bool is_wanted = options.label_lines == LabelLines::kAuto
                             ? group.world_size() > 1
                             : options.label_lines == LabelLines::kOn;
  if (!is_wanted) return {};
  const std::string rank = std::to_string(group.first_rank() + local_rank);
  auto text = env("TORCHELASTIC_LOG_LINE_PREFIX_TEMPLATE");
  if (!text) return "[rank " + rank + "] ";
  for (const std::string open : {"${", "$"}) {
    const std::string close = open == "$" ? "" : "}";
    replace_all(*text, open + "role_name" + close, options.role);
    replace_all(*text, open + "local_rank" + close, std::to_string(local_rank));
    replace_all(*text, open + "rank" + close, rank);
  }
  return *text;
}

StreamPlan plan_stream(const RunOptions& options, const Group& group,
                       const LogFiles& logs, int local_rank, Streams which) {
  const bool is_teed = has(options.tee.of(local_rank), which);
  const bool is_redirected =
      !is_teed && has(options.redirects.of(local_rank), which);
  StreamPlan plan;
  plan.is_redirected = is_redirected;
  plan.is_shown = !is_redirected && is_shown(options, local_rank);
  plan.label = label(options, group, local_rank);
  plan.is_raw = plan.label.empty() && options.workers == 1;
  if (is_teed || is_redirected) {
    plan.log_path = logs.file(
        local_rank, which == Streams::kOut ? "stdout.log" : "stderr.log");
  }
  return plan;
}

}  // namespace

WorkerTeam::WorkerTeam(const RunOptions& options, const Group& group,
                       const Endpoint& master,
                       const std::vector<std::string>& command, int attempt,
                       const LogFiles& logs, Console& out, Console& err) {
  strays_.except(guard_.pid());
  WorkerPlan plan;
  plan.program = find_program(command.front(), options.environment);
  plan.arguments = command;
  for (int rank = 0; rank < options.workers; ++rank) {
    const auto cores = core_share(allowed_cores(), rank, options.workers);
    plan.environment = merged_environment(
        worker_variables(options, group, master, rank, attempt, cores.size(),
                         logs.file(rank, "error.json")));
    if (options.pins_cores) plan.cores = cores;
    WorkerStream to_out(plan_stream(options, group, logs, rank, Streams::kOut),
                        out);
    WorkerStream to_err(plan_stream(options, group, logs, rank, Streams::kErr),
                        err);
    plan.out_fd = to_out.worker_end();
    plan.err_fd = to_err.worker_end();
    WorkerProcess process(plan);
    guard_.add(process.pid());
    strays_.except(process.pid());
    to_out.close_worker_end();
    to_err.close_worker_end();
    workers_.push_back({.rank = group.first_rank() + rank,
                        .local_rank = rank,
                        .out = std::move(to_out),
                        .err = std::move(to_err),
                        .process = std::move(process)});
  }
}

bool WorkerTeam::is_running() const {
  return std::any_of(workers_.begin(), workers_.end(), [](const Worker& one) {
    return one.process.is_running();
  });
}

bool WorkerTeam::note_ends() {
  bool has_failed = false;
  for (Worker& worker : workers_) {
    const auto end = worker.process.poll_end();
    if (!end) continue;
    worker.end = *end;
    worker.end_time_s = unix_time_s();
    has_failed = has_failed || worker.has_failed();
  }
  return has_failed;
}

void WorkerTeam::send(int signal) const {
  for (const Worker& worker : workers_) {
    worker.process.send(signal);
    if (signal != SIGKILL) worker.process.send(SIGCONT);
  }
}

void WorkerTeam::end_leftovers() const {
  for (const Worker& worker : workers_) worker.process.send(SIGKILL);
  strays_.end_all();
}

}  // namespace lockstep::launch
