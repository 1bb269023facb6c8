#include "lockstep/launch/agent.h"

#include <algorithm>
#include <csignal>
#include <poll.h>
#include <unistd.h>
#include <utility>

#include <fmt/format.h>

#include "lockstep/base/exit_codes.h"
#include "lockstep/base/interrupt.h"
#include "lockstep/launch/clock.h"
#include "lockstep/launch/signals.h"

namespace lockstep::launch {
namespace {

constexpr double kGraceAfterFailureS = 5;
constexpr double kGraceAfterSignalS = 30;
constexpr double kReapEveryS = 5;
// Once all writers are gone, their pipes are at their end. Only a process that
// can't be killed keeps one open.
constexpr double kDrainPatienceS = 2;
constexpr int kDrainPollMs = 100;
// A reader that stands still may not hold up who asked us to end.
constexpr double kConsolePatienceS = 5;

// A scheduler that wants the machine back would not be pleased by a restart.
Notice notice_of(const Failure& first) {
  const bool is_preempted = first.exit_code == kExitPreempted;
  return {.why = fmt::format("rank {} on {} {}: {}", first.rank, first.host,
                             is_preempted ? "was preempted" : "failed",
                             first.how_it_ended()),
          .may_restart = !is_preempted};
}

}  // namespace

Agent::Agent(const RunOptions& options, const std::vector<std::string>& command,
             Meeting& meeting, SignalWatch& signals)
    : options_(options),
      meeting_(meeting),
      signals_(signals),
      out_(STDOUT_FILENO),
      err_(STDERR_FILENO),
      logs_(options.log_dir, options.run_id, options.workers),
      command_(command) {
  if (!options.redirects.is_none() || !options.tee.is_none()) logs_.keep();
  begin_attempt();
}

void Agent::begin_attempt() {
  // The clock of a file's time lags behind by a tick.
  start_time_s_ = unix_time_s() - 0.1;
  reason_ = Reason::kNone;
  notice_ = {};
  ending_signal_ = 0;
  ending_time_s_ = 0;
  is_killing_ = false;
  are_peers_done_ = false;
  use_keys_of_attempt();
  if (attempt_ > 0) logs_.begin_attempt(attempt_);
  team_.emplace(options_, meeting_.group, meeting_.store.endpoint(), command_,
                attempt_, logs_, out_, err_);
  if (meeting_.group.nodes.size() > 1) {
    peers_ = std::make_unique<PeerWatch>(meeting_.store, meeting_.group,
                                         options_.keep_alive_s);
  }
}

int Agent::run() {
  for (;;) {
    watch_workers();
    team_->end_leftovers();
    team_->note_ends();
    drain();
    const SharedEnd end = end_attempt();
    const Decision decision = decide(end);
    if (!decision.restarts) return conclude(end.failures);
    if (signal_ == 0) tell_of_restart(end, decision.delay_s);
    team_.reset();
    ++attempt_;
    if (!wait_before_restart(decision.delay_s)) return conclude(end.failures);
    begin_attempt();
    faults_.recovered(unix_time_s());
  }
}

void Agent::watch_workers() {
  const int timeout_ms =
      std::max(1, static_cast<int>(options_.monitor_interval_s * 1000));
  Stopwatch since_reaped;
  bool has_told_done = false;
  for (;;) {
    const bool has_failed = team_->note_ends();
    if (has_failed && reason_ == Reason::kNone) {
      const auto workers = own_failures();
      const Failure& first = *root_cause(workers);
      begin_ending(Reason::kWorker, SIGTERM, notice_of(first));
    }
    if (!team_->is_running()) {
      if (is_job_over()) return;
      if (!has_told_done) peers_->tell_done();
      has_told_done = true;
    }
    if (reason_ != Reason::kNone && !is_killing_ &&
        ending_.seconds() > grace_s()) {
      is_killing_ = true;
      team_->send(SIGKILL);
    }
    if (since_reaped.seconds() > kReapEveryS) {
      team_->reap_orphans();
      since_reaped.restart();
    }
    wait_for_events(timeout_ms);
  }
}

bool Agent::is_job_over() const {
  return reason_ != Reason::kNone || !peers_ || are_peers_done_;
}

std::vector<WorkerStream*> Agent::streams() {
  std::vector<WorkerStream*> all;
  if (!team_) return all;
  for (Worker& worker : team_->workers()) {
    all.push_back(&worker.out);
    all.push_back(&worker.err);
  }
  return all;
}

bool Agent::wait_for_events(int timeout_ms) {
  std::vector<pollfd> fds{{signals_.fd(), POLLIN, 0},
                          {peers_ ? peers_->fd() : -1, POLLIN, 0},
                          {out_.has_pending() ? out_.fd() : -1, POLLOUT, 0},
                          {err_.has_pending() ? err_.fd() : -1, POLLOUT, 0}};
  const size_t first_stream = fds.size();
  const auto all = streams();
  for (const auto* stream : all) {
    fds.push_back({stream->wants_more() ? stream->fd() : -1, POLLIN, 0});
  }
  for (size_t i = 0; team_ && i < team_->workers().size(); ++i) {
    const Worker& worker = team_->workers()[i];
    fds.push_back({worker.process.end_fd(), POLLIN, 0});
  }
  if (::poll(fds.data(), fds.size(), timeout_ms) <= 0) return false;
  if (fds[0].revents != 0) {
    while (const auto signal = signals_.take()) on_signal(*signal);
  }
  if (fds[1].revents != 0) on_peer_news();
  for (size_t i = 0; i < all.size(); ++i) {
    if (fds[first_stream + i].revents != 0) all[i]->read_some();
  }
  out_.write_some();
  err_.write_some();
  if (out_.is_broken() && reason_ == Reason::kNone) {
    begin_ending(Reason::kOutput, SIGTERM,
                 {.why = "the reader of the output of " +
                         meeting_.group.self().host + " is gone"});
  }
  return true;
}

// Nothing of a former attempt may be taken for news.
void Agent::use_keys_of_attempt() {
  meeting_.store.set_prefix(
      fmt::format("{}attempt {}/", meeting_.prefix, attempt_));
}

Notice Agent::notice_of_signal(int signal) const {
  return {.why = fmt::format("the agent on {} got {}",
                             meeting_.group.self().host, signal_name(signal))};
}

void Agent::on_signal(int signal) {
  const int first = std::exchange(signal_, signal);
  if (first != 0 && is_same_request(first, signal, ending_.seconds())) {
    if (team_ && !is_killing_) team_->send(signal);
    return;
  }
  if (reason_ == Reason::kNone) {
    begin_ending(Reason::kSignal, signal, notice_of_signal(signal));
  } else if (!is_killing_) {  // asked twice: no more patience
    is_killing_ = true;
    if (team_) team_->send(SIGKILL);
  }
}

void Agent::on_peer_news() {
  const PeerNews news = peers_->take_news();
  are_peers_done_ = news.all_done;
  if (news.notice && reason_ == Reason::kNone) {
    begin_ending(Reason::kPeer, SIGTERM, *news.notice);
  }
}

void Agent::begin_ending(Reason reason, int signal, const Notice& notice) {
  reason_ = reason;
  notice_ = notice;
  ending_signal_ = signal;
  ending_time_s_ = unix_time_s();
  ending_.restart();
  if (team_) team_->send(signal);
  if (peers_) peers_->tell(notice);
}

double Agent::grace_s() const {
  return options_.grace_s.value_or(
      reason_ == Reason::kSignal ? kGraceAfterSignalS : kGraceAfterFailureS);
}

void Agent::drain() {
  Stopwatch idle;
  for (;;) {
    const auto all = streams();
    const bool has_open =
        std::any_of(all.begin(), all.end(),
                    [](const auto* stream) { return stream->fd() >= 0; });
    const bool is_held_up = out_.has_pending() || err_.has_pending();
    if (!has_open && !is_held_up) return;
    if (wait_for_events(kDrainPollMs)) {
      idle.restart();
    } else if (is_held_up) {
      const bool is_in_a_hurry = signal_ != 0 || reason_ == Reason::kOutput;
      if (is_in_a_hurry && idle.seconds() > kConsolePatienceS) return;
    } else if (idle.seconds() > kDrainPatienceS) {
      for (auto* stream : all) stream->finish();
    }
  }
}

}  // namespace lockstep::launch
