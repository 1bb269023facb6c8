#include "lockstep/launch/workers/worker_failures.h"

#include <csignal>

#include <fmt/format.h>

#include "lockstep/base/env.h"
#include "lockstep/base/error.h"
#include "lockstep/base/log.h"
#include "lockstep/launch/failure/error_file.h"

namespace lockstep::launch {
namespace {

constexpr size_t kLastLines = 15;
// File times may lag behind the clock by a tick.
constexpr double kFileTimeTickS = 0.1;

std::string error_file_of(const Worker& worker) {
  return worker.folder + "/error.json";
}

void try_write(const std::string& path, const ErrorRecord& record,
               int exit_code) {
  try {
    write_error_file(path, record, exit_code);
  } catch (const Error& error) {
    log_warning("launch", text_of(error));
  }
}

Failure failure_of(const Worker& worker, const AttemptFacts& attempt) {
  const Moment ended_at = worker.ended_at.value_or(Moment::now());
  double failed_s = ended_at.steady_s;
  Failure failure{.rank = worker.rank,
                  .local_rank = worker.local_rank,
                  .node_rank = attempt.node_rank,
                  .host = attempt.host,
                  .pid = worker.process.pid(),
                  .exit_code = worker.end.exit_code,
                  .signal = worker.end.signal,
                  .time_s = ended_at.unix_s,
                  .message = {},
                  .callstack = {},
                  .last_lines = worker.err.last_lines(kLastLines),
                  .log_folder = {}};
  if (attempt.keeps_logs) failure.log_folder = worker.folder;
  if (!worker.hang.empty()) {
    failure.message = worker.hang;
    failure.callstack = worker.stacks;
  } else if (const auto record = read_error_file(error_file_of(worker))) {
    failure.is_consequence = record->is_of_peer;
    failure.message = record->message;
    failure.callstack = record->callstack;
    // A time after the worker's end, or before its start, is ignored.
    const double earlier_s = ended_at.unix_s - record->time_s;
    const double lasted_s = ended_at.steady_s - attempt.began_s;
    if (earlier_s > 0 && earlier_s <= lasted_s + kFileTimeTickS) {
      failure.time_s = record->time_s;
      failed_s -= earlier_s;
    }
  }
  failure.is_cause =
      !attempt.ending_began_s || failed_s <= *attempt.ending_began_s;
  return failure;
}

}  // namespace

std::vector<Failure> worker_failures(const std::vector<Worker>& workers,
                                     const AttemptFacts& attempt) {
  std::vector<Failure> failures;
  for (const Worker& worker : workers) {
    if (!worker.has_failed()) continue;
    const Failure failure = failure_of(worker, attempt);
    const bool ended_by_agent =
        failure.signal == SIGKILL || failure.signal == attempt.ending_signal;
    if (failure.is_cause || failure.signal == 0 || !ended_by_agent) {
      failures.push_back(failure);
    }
  }
  admit_late_causes(failures);
  return failures;
}

void write_missing_error_files(const std::vector<Failure>& failures,
                               const std::vector<Worker>& workers) {
  for (const Failure& failure : failures) {
    if (failure.signal == 0 || !failure.message.empty()) continue;
    const Worker& worker = workers[static_cast<size_t>(failure.local_rank)];
    try_write(error_file_of(worker),
              {.message = fmt::format("rank {} was ended by {}", failure.rank,
                                      failure.how_it_ended()),
               .callstack = {},
               .time_s = failure.time_s},
              failure.torchrun_exit_code());
  }
}

void pass_on_root_cause(const Failure& root) {
  const auto path = env("TORCHELASTIC_ERROR_FILE");
  if (!path) return;
  const std::string message =
      root.message.empty()
          ? fmt::format("rank {}: {}", root.rank, root.how_it_ended())
          : root.message;
  try_write(
      *path,
      {.message = message, .callstack = root.callstack, .time_s = root.time_s},
      root.torchrun_exit_code());
}

}  // namespace lockstep::launch
