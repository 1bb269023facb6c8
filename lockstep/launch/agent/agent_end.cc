// How an agent ends: what failed, in whose words, and with which exit code.
#include <algorithm>
#include <csignal>
#include <poll.h>

#include <fmt/format.h>

#include "lockstep/base/env.h"
#include "lockstep/base/error.h"
#include "lockstep/base/exit_codes.h"
#include "lockstep/base/first_line.h"
#include "lockstep/base/log.h"
#include "lockstep/launch/agent/agent.h"
#include "lockstep/launch/agent/farewell.h"
#include "lockstep/launch/failure/error_file.h"
#include "lockstep/launch/options/signals.h"

namespace lockstep::launch {
namespace {

constexpr size_t kLastLines = 15;
constexpr double kGraceOfWaitingS = 5;
// The clock of a file's time lags behind by a tick.
constexpr double kFileTimeTickS = 0.1;
constexpr int kPollMs = 20;
constexpr double kSharePatienceS = 5;  // beyond the grace of other nodes

std::string error_file_of(const Worker& worker) {
  return worker.folder + "/error.json";
}

void try_write(const std::string& path, const ErrorRecord& record,
               int exit_code) {
  try {
    write_error_file(path, record, exit_code);
  } catch (const Error& error) {
    log_warning("launch", error.what());
  }
}

std::string why_it_failed(const Failure& failure) {
  return fmt::format("rank {} on {} failed: {}", failure.rank, failure.host,
                     failure.how_it_ended());
}

std::string who_starts(int workers, int waiting) {
  const int lost = workers - waiting;
  if (waiting == 0) return "all start again";
  if (lost == 0) return fmt::format("{} wait for the others", waiting);
  return fmt::format(
      "{} {} again, {} {} for {}", lost, lost == 1 ? "starts" : "start",
      waiting, waiting == 1 ? "waits" : "wait", lost == 1 ? "it" : "them");
}

// What the workers say by their exit codes then is no failure.
bool was_preempted(const std::vector<Failure>& failures) {
  return !failures.empty() &&
         std::all_of(failures.begin(), failures.end(), [](const auto& one) {
           return one.exit_code == kExitPreempted;
         });
}

}  // namespace

Failure Agent::failure_of(const Worker& worker) const {
  const Moment ended_at = worker.ended_at.value_or(Moment::now());
  double failed_s = ended_at.steady_s;
  Failure failure{.rank = worker.rank,
                  .local_rank = worker.local_rank,
                  .node_rank = meeting_.group.node_rank,
                  .host = meeting_.group.self().host,
                  .pid = worker.process.pid(),
                  .exit_code = worker.end.exit_code,
                  .signal = worker.end.signal,
                  .time_s = ended_at.unix_s,
                  .message = {},
                  .callstack = {},
                  .last_lines = worker.err.last_lines(kLastLines),
                  .log_folder = {}};
  if (logs_.is_kept()) failure.log_folder = worker.folder;
  if (!worker.verdict.empty()) {
    failure.message = worker.verdict;
    failure.callstack = worker.stacks;
  } else if (const auto record = read_error_file(error_file_of(worker))) {
    failure.is_consequence = record->is_of_peer;
    failure.message = record->message;
    failure.callstack = record->callstack;
    // A time that can't be, is not believed.
    const double earlier_s = ended_at.unix_s - record->time_s;
    const double lasted_s = ended_at.steady_s - began_.steady_s;
    if (earlier_s > 0 && earlier_s <= lasted_s + kFileTimeTickS) {
      failure.time_s = record->time_s;
      failed_s -= earlier_s;
    }
  }
  failure.is_cause =
      reason_ == Reason::kNone || failed_s <= ending_began_.steady_s;
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
  admit_late_causes(failures);
  return failures;
}

SharedEnd Agent::end_attempt() {
  SharedEnd end{.notice = notice_, .failures = own_failures()};
  for (const Failure& failure : end.failures) {
    const auto path =
        error_file_of(team_.workers()[static_cast<size_t>(failure.local_rank)]);
    if (failure.signal == 0 || !failure.message.empty()) continue;
    try_write(path,
              {.message = fmt::format("rank {} was ended by {}", failure.rank,
                                      failure.how_it_ended()),
               .callstack = {},
               .time_s = failure.time_s},
              failure.torchrun_exit_code());
  }
  end.is_complete = !peers_;
  if (!peers_) return end;
  peers_.reset();
  if (reason_ == Reason::kNone) return end;
  if (is_leaving_) tell_leaving(meeting_);
  return share_failures(meeting_, notice_, std::move(end.failures),
                        grace_s() + kSharePatienceS);
}

Decision Agent::decide(const SharedEnd& end) {
  if (reason_ == Reason::kNone || is_leaving_) return {};
  const bool is_fault = end.notice.is_fault;
  if (is_fault && (reason_ == Reason::kWorker || reason_ == Reason::kPeer)) {
    faults_.add(
        {.root = root_cause(end.failures),
         .why = end.notice.why,
         .is_node_lost = end.notice.lost_node >= 0,
         .began_s = began_.steady_s,
         .failed_s = ending_began_.steady_s,
         .steps = has_progress_ ? std::optional(steps_done()) : std::nullopt});
  }
  const bool is_allowed = !is_fault || (may_restart() && !faults_.is_stuck());
  const bool restarts = end.notice.may_restart && is_allowed &&
                        (end.is_complete || options_.is_elastic()) &&
                        reason_ != Reason::kOutput;
  // Clocks, limits and patience may differ from node to node.
  return decide_together(
      meeting_,
      {.restarts = restarts, .delay_s = is_fault ? faults_.delay_s() : 0},
      options_.is_elastic());
}

void Agent::tell_of_restart(const SharedEnd& end, double delay_s) {
  const Failure* root = root_cause(end.failures);
  std::string why = end.notice.why;
  // The first that was seen to end may have missed another.
  if (root != nullptr && root->is_cause && !root->is_consequence) {
    why = why_it_failed(*root);
  }
  if (root != nullptr && !root->message.empty()) {
    why += ": " + first_line(root->message);
  }
  if (root != nullptr && !root->callstack.empty() && root->signal != 0) {
    err_.add(
        fmt::format("[launch] the threads of rank {} when it was ended:\n"
                    "{}\n",
                    root->rank, root->callstack));
  }
  const std::string delay =
      delay_s > 0 ? fmt::format(" in {:g} s", delay_s) : "";
  const std::string which =
      end.notice.is_fault ? fmt::format(" (restart {} of {})", restarts_ + 1,
                                        options_.max_restarts)
                          : "";
  err_.add(fmt::format("[launch] {}; {}{}{}\n", why,
                       who_starts(options_.workers, team_.count_waiting()),
                       delay, which));
}

// Those that were kept for an attempt that does not come.
void Agent::end_waiting() {
  block_.header().is_closed = 1;
  ending_.restart();
  // The others go on with what these did.
  is_killing_ = is_leaving_;
  if (is_leaving_) team_.send(SIGKILL);
  while (team_.is_alive()) {
    team_.note_ends();
    if (!is_killing_ && ending_.seconds() > kGraceOfWaitingS) {
      is_killing_ = true;
      team_.send(SIGKILL);
    }
    wait_for_events(kPollMs);
  }
  team_.end_leftovers();
  drain();
}

bool Agent::wait_before_restart(double delay_s) {
  const Stopwatch waited;
  for (;;) {
    while (const auto signal = signals_.take()) signal_ = *signal;
    if (signal_ != 0) break;
    const double left_s = delay_s - waited.seconds();
    if (left_s <= 0) return true;
    pollfd ready{signals_.fd(), POLLIN, 0};
    ::poll(&ready, 1, static_cast<int>(left_s * 1000) + 1);
    err_.write_some();
  }
  end_by_signal();
  // Where nodes come and go, the others miss this one in the next attempt, and
  // go on without it.
  if (options_.is_elastic() && !meeting_.serves_store) return false;
  // The others are about to begin the next attempt, and hear of it there.
  if (meeting_.group.nodes.size() > 1) {
    use_keys_of_attempt();
    share_failures(meeting_, notice_, {}, /*patience_s=*/0);
  }
  return false;
}

int Agent::conclude(const std::vector<Failure>& failures) {
  end_waiting();
  if (meeting_.group.nodes.size() > 1) leave(meeting_, notice_.lost_node);
  err_.add(faults_.text());
  if (faults_.is_stuck()) err_.add(faults_.why_stuck());
  const Failure* root = root_cause(failures);
  if (was_preempted(failures)) {
    err_.add("[launch] the job was preempted, and can go on: " + notice_.why +
             "\n");
  } else {
    const bool has_cause = root != nullptr && root->is_cause;
    if (reason_ == Reason::kSignal ||
        (reason_ != Reason::kNone && !has_cause)) {
      err_.add("[launch] the job was ended: " + notice_.why + "\n");
    }
    if (has_cause) {
      keep_error_file(*root);
      err_.add(failure_report(failures));
    }
  }
  drain();
  return exit_code(failures);
}

int Agent::exit_code(const std::vector<Failure>& failures) const {
  if (was_preempted(failures)) return kExitPreempted;
  switch (reason_) {
    case Reason::kNone:
      return 0;
    case Reason::kWorker:
    case Reason::kPeer:
      return 1;
    case Reason::kSignal:
      return kExitSignal + ending_signal_;
    case Reason::kOutput:
      return kExitSignal + SIGPIPE;
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
