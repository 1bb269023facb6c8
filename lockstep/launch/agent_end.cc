// How an agent ends: what failed, in whose words, and with which exit code.
#include <csignal>

#include <fmt/format.h>

#include "lockstep/base/env.h"
#include "lockstep/base/error.h"
#include "lockstep/base/log.h"
#include "lockstep/launch/agent.h"
#include "lockstep/launch/error_file.h"
#include "lockstep/launch/farewell.h"
#include "lockstep/launch/signals.h"

namespace lockstep::launch {
namespace {

constexpr size_t kLastLines = 15;
constexpr double kSharePatienceS = 5;  // beyond the grace of other nodes
constexpr int kShellSignalCode = 128;

void try_write(const std::string& path, const ErrorRecord& record,
               int exit_code) {
  try {
    write_error_file(path, record, exit_code);
  } catch (const Error& error) {
    log_warning("launch", error.what());
  }
}

}  // namespace

Failure Agent::failure_of(const Worker& worker) const {
  Failure failure{.rank = worker.rank,
                  .local_rank = worker.local_rank,
                  .node_rank = meeting_.group.node_rank,
                  .host = meeting_.group.self().host,
                  .pid = worker.process.pid(),
                  .exit_code = worker.end.exit_code,
                  .signal = worker.end.signal,
                  .time_s = worker.end_time_s,
                  .message = {},
                  .callstack = {},
                  .last_lines = worker.err.last_lines(kLastLines),
                  .log_folder = {}};
  if (logs_.is_kept()) failure.log_folder = logs_.folder(worker.local_rank);
  const auto path = logs_.file(worker.local_rank, "error.json");
  if (const auto record = read_error_file(path)) {
    failure.message = record->message;
    failure.callstack = record->callstack;
    // A time that can't be, is not believed.
    if (record->time_s >= start_time_s_ && record->time_s < failure.time_s) {
      failure.time_s = record->time_s;
    }
  }
  failure.is_cause =
      reason_ == Reason::kNone || failure.time_s <= ending_time_s_;
  return failure;
}

std::vector<Failure> Agent::own_failures() const {
  std::vector<Failure> failures;
  for (const Worker& worker : team_.workers()) {
    if (!worker.has_failed()) continue;
    const Failure failure = failure_of(worker);
    // One that we ended did not fail.
    const bool is_ours =
        failure.signal == SIGKILL || failure.signal == ending_signal_;
    if (failure.is_cause || failure.signal == 0 || !is_ours) {
      failures.push_back(failure);
    }
  }
  return failures;
}

int Agent::conclude() {
  auto failures = own_failures();
  for (const Failure& failure : failures) {
    const auto path = logs_.file(failure.local_rank, "error.json");
    if (failure.signal == 0 || !failure.message.empty()) continue;
    try_write(path,
              {.message = fmt::format("rank {} was ended by {}", failure.rank,
                                      failure.how_it_ended()),
               .callstack = {},
               .time_s = failure.time_s},
              failure.torchrun_exit_code());
  }
  if (peers_) {
    peers_.reset();
    if (reason_ != Reason::kNone) {
      failures = share_failures(meeting_, why_, std::move(failures),
                                grace_s() + kSharePatienceS);
    }
    leave(meeting_);
  }
  const Failure* root = root_cause(failures);
  if (root != nullptr && root->is_cause) {
    keep_error_file(*root);
    err_.add(failure_report(failures));
  } else if (reason_ != Reason::kNone) {
    err_.add("[launch] the job was ended: " + why_ + "\n");
  }
  drain();
  return exit_code();
}

int Agent::exit_code() const {
  switch (reason_) {
    case Reason::kNone:
      return 0;
    case Reason::kWorker:
    case Reason::kPeer:
      return 1;
    case Reason::kSignal:
      return kShellSignalCode + ending_signal_;
    case Reason::kOutput:
      return kShellSignalCode + SIGPIPE;
  }
  return 1;
}

// For the launcher that started this one, if any.
void Agent::keep_error_file(const Failure& root) const {
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
