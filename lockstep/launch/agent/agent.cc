#include "lockstep/launch/agent/agent.h"

#include <algorithm>
#include <csignal>
#include <poll.h>
#include <unistd.h>
#include <utility>

#include <fmt/format.h>

#include "lockstep/base/event_loop.h"
#include "lockstep/base/exit_code.h"
#include "lockstep/base/printable.h"
#include "lockstep/base/text.h"
#include "lockstep/launch/failure/failure.h"
#include "lockstep/launch/workers/hang.h"
#include "lockstep/launch/workers/worker_failures.h"
#include "lockstep/transport/failure_text.h"

namespace lockstep::launch {
namespace {

// Polling interval while workers end. Nothing wakes the agent when a worker
// begins to wait.
constexpr int kEndingPollMs = 5;
// Additional time for which a worker waits beyond the join timeout, to allow
// for back-off, grace periods and reports.
constexpr double kAgentsTimeoutS = 300;
// Longest polling interval otherwise. Nothing wakes the agent when a worker
// offers memory for snapshots.
constexpr double kMaxSleepS = 1;
constexpr double kReapEveryS = 5;
// If a rank is lost, its end is detected within this time after the first
// worker misses it.
constexpr double kBlameTimeoutS = 1;
// A pipe ends when all its writers are gone. Only a process that can't be
// killed keeps one open longer.
constexpr double kDrainTimeoutS = 2;
constexpr int kDrainPollMs = 100;
// Longest delay of the end by a reader of the agent's output that has stopped.
constexpr double kConsoleTimeoutS = 5;
constexpr int kClosingPollMs = 20;
// The least time that nodes have to report, beyond the grace period. One that
// is cut off may come back within keep_alive_s.
constexpr double kShareTimeoutS = 5;

bool is_bad_usage(const Failure& failure) {
  return failure.signal == 0 && failure.exit_code == kExitBadUsage;
}

// A preemption is not followed by a restart, because the scheduler wants the
// machine back. Neither is bad usage, because the options stay the same.
Notice notice_of(const Failure& first) {
  const bool is_preempted = first.exit_code == kExitPreempted;
  return {.why = fmt::format("rank {} on {} {}: {}", first.rank, first.host,
                             is_preempted ? "was preempted" : "failed",
                             first.how_it_ended()),
          .may_restart = !is_preempted && !is_bad_usage(first)};
}

std::string why_it_failed(const Failure& failure) {
  return fmt::format("rank {} on {} failed: {}", failure.rank, failure.host,
                     failure.how_it_ended());
}

std::string who_starts(int workers, int waiting) {
  const int lost = workers - waiting;
  if (waiting == 0) return "all workers start again";
  if (lost == 0) {
    return fmt::format("{} {} for the others", waiting,
                       waiting == 1 ? "waits" : "wait");
  }
  return fmt::format(
      "{} {} again, {} {} for {}", lost, lost == 1 ? "starts" : "start",
      waiting, waiting == 1 ? "waits" : "wait", lost == 1 ? "it" : "them");
}

// Returns true if all workers ended with the exit code of a preemption, which
// is not a failure.
bool was_preempted(const std::vector<Failure>& failures) {
  return !failures.empty() &&
         std::all_of(failures.begin(), failures.end(),
                     [](const Failure& failure) {
                       return failure.exit_code == kExitPreempted;
                     });
}

// Returns how a node or the network was lost in an attempt, or nullopt.
std::optional<std::string> loss(const AgentState& state, const SharedEnd& end) {
  if (!state.is_ending()) return std::nullopt;
  if (end.notice.exit_code == kExitPreempted) return end.notice.why;
  if (end.is_complete) return std::nullopt;
  return end.notice.why + "; not all nodes reported how their workers ended";
}

}  // namespace

Agent::Agent(const RunOptions& options, const std::vector<std::string>& command,
             Rendezvous& rendezvous, SignalWatch& signals)
    : options_(options),
      rendezvous_(rendezvous),
      signals_(signals),
      out_(STDOUT_FILENO),
      err_(STDERR_FILENO),
      logs_(options.log_dir, options.run_id, options.workers),
      block_(control::ControlBlock::create(options.workers)),
      snapshots_(block_),
      team_(options, command, logs_, block_, out_, err_),
      attempt_(rendezvous.attempt) {
  if (!options.redirects.is_none() || !options.tee.is_none()) logs_.keep();
  begin_attempt();
}

void Agent::begin_attempt() {
  began_ = Moment::now();
  state_ = state_of_next_attempt(state_);
  use_keys_of_attempt();
  has_progress_ = false;
  since_waiting_.reset();
  // A worker that waited may have ended in the meantime.
  team_.note_ends();
  team_.note_waits();
  const bool may_go_on = has_restarts_left() || options_.is_elastic();
  block_.header().may_wait = may_go_on ? 1 : 0;
  block_.header().wait_limit_s.store(
      static_cast<uint32_t>(options_.join_timeout_s + kAgentsTimeoutS));
  if (attempt_ > 0) logs_.begin_attempt(attempt_);
  const Endpoint master = begin_round(rendezvous_, options_, attempt_);
  grant_store_access(rendezvous_, block_, attempt_);
  team_.begin(rendezvous_.group, master, attempt_);
  begin_peer_watch();
}

void Agent::begin_peer_watch() {
  const Group& group = rendezvous_.group;
  if (group.nodes.size() == 1 && !options_.is_elastic()) return;
  const bool has_room =
      group.nodes.size() < static_cast<size_t>(options_.nodes);
  const PeerWatchOptions options{.keep_alive_s = options_.keep_alive_s,
                                 .is_elastic = options_.is_elastic(),
                                 .expects_nodes = options_.is_elastic() &&
                                                  rendezvous_.serves_store &&
                                                  has_room};
  peers_ = std::make_unique<PeerWatch>(rendezvous_, options);
}

int Agent::run() {
  for (;;) {
    watch_workers();
    team_.kill_leftovers();
    team_.note_ends();
    drain();
    const SharedEnd end = end_attempt();
    loss_ = loss(state_, end);
    const Decision decision = decide(end);
    if (!decision.restarts) return conclude(end.failures);
    if (state_.requested_signal == 0) report_restart(end, decision.delay_s);
    ++attempt_;
    if (end.notice.is_fault) ++restarts_;
    const bool goes_on = wait_before_restart(decision.delay_s) &&
                         (!options_.is_elastic() || join_next_attempt(end));
    if (!goes_on) return conclude(end.failures);
    begin_attempt();
    if (end.notice.is_fault) faults_.recovered(Moment::now().steady_s);
  }
}

void Agent::watch_workers() {
  const double sleep_s = std::min(options_.monitor_interval_s, kMaxSleepS);
  const int timeout_ms = std::max(1, static_cast<int>(sleep_s * 1000));
  Stopwatch since_reaped;
  bool has_told_done = false;
  for (;;) {
    check_failures();
    check_waiting();
    check_hangs();
    check_progress();
    snapshots_.look();
    if (!team_.is_at_work() && is_job_over()) return;
    if (!team_.is_alive() && !has_told_done && peers_) {
      peers_->announce_done();
      has_told_done = true;
    }
    handle(Tick());
    if (since_reaped.seconds() > kReapEveryS) {
      team_.reap_leftovers();
      since_reaped.restart();
    }
    wait_for_events(state_.is_ending() ? kEndingPollMs : timeout_ms);
  }
}

void Agent::check_failures() {
  if (!team_.note_ends() || state_.is_ending()) return;
  handle(WorkersFailed{notice_of(*root_cause(own_failures()))});
}

// A worker waits because it lost another one. If no worker ended, neither here
// nor on another node, the collective itself went wrong.
void Agent::check_waiting() {
  team_.note_waits();
  if (team_.count_waiting() == 0 || state_.is_ending()) return;
  if (!since_waiting_) since_waiting_.emplace();
  if (since_waiting_->seconds() < kBlameTimeoutS) return;
  for (const Worker& worker : team_.workers()) {
    if (!worker.waits) continue;
    handle(WorkersFailed{
        {.why = fmt::format(
             "rank {} on {} gave up: {}", worker.rank,
             rendezvous_.group.self().host,
             printable(transport::text_of(team_.slot_of(worker).reason), 400)),
         .may_restart = true}});
    return;
  }
}

// Ranks wait for each other. If none of them makes progress, the one with the
// least progress is the one that hangs.
void Agent::check_hangs() {
  const double timeout_s = options_.hang_timeout_s.value_or(kHangTimeoutS);
  if (timeout_s <= 0 || state_.is_ending()) return;
  if (options_.hang_timeout_s) warn_about_silent_workers(timeout_s);
  const auto hung = hung_worker(team_, timeout_s);
  if (!hung) return;
  Worker& worker = team_.workers()[hung->index];
  worker.hang = hung->how;
  worker.stacks = hung->stacks;
  worker.process.send(SIGKILL);
}

// Says once which workers --hang-timeout has no effect on.
void Agent::warn_about_silent_workers(double timeout_s) {
  if (has_warned_about_silent_workers_ ||
      Moment::now().steady_s - began_.steady_s < timeout_s) {
    return;
  }
  const std::vector<int> silent = silent_ranks(team_);
  if (silent.empty()) return;
  has_warned_about_silent_workers_ = true;
  err_.add(
      fmt::format("[launch] WARNING: --hang-timeout does not watch {} {}: no "
                  "progress was reported in {:g} s; expected a program that "
                  "trains with Lockstep; other programs need time-outs of "
                  "their own\n",
                  silent.size() == 1 ? "rank" : "ranks",
                  fmt::join(silent, ", "), timeout_s));
}

// Notes when training begins, if the program reports its phases.
void Agent::check_progress() {
  if (has_progress_ || state_.is_ending()) return;
  uint64_t steps = 0;
  for (const Worker& worker : team_.workers()) {
    const control::WorkerSlot& slot = team_.slot_of(worker);
    if (slot.phase.load() <= control::Phase::kStart) return;
    steps = std::max(steps, slot.first_steps.load());
  }
  has_progress_ = true;
  faults_.began_training(Moment::now().steady_s, steps);
}

uint64_t Agent::steps_done() const {
  uint64_t steps = 0;
  for (const Worker& worker : team_.workers()) {
    steps = std::max(steps, team_.slot_of(worker).steps.load());
  }
  return steps;
}

bool Agent::is_job_over() const {
  if (state_.is_ending()) return true;
  return team_.count_waiting() == 0 && (!peers_ || state_.are_peers_done);
}

bool Agent::join_next_attempt(const SharedEnd& end) {
  struct Stopped {};
  try {
    next_rendezvous(rendezvous_, options_, end.staying, attempt_, [this] {
      if (is_asked_to_end()) throw Stopped();
      wait_for_events(/*timeout_ms=*/0);
    });
    return true;
  } catch (const Stopped&) {
    return false;
  } catch (const CutOff&) {
    throw;
  } catch (const LaunchError& error) {
    if (!loss_) throw;
    loss_ = text_of(error);  // no other node came in time
    return false;
  }
}

// Calls poll() instead of an EventLoop. Streams and processes close their own
// descriptors, the console decides which streams are read, and the agent's
// output may be a file, for which epoll can't wait. So the list is made anew
// each time.
bool Agent::wait_for_events(int timeout_ms) {
  std::vector<pollfd> fds{{signals_.fd(), POLLIN, 0},
                          {peers_ ? peers_->fd() : -1, POLLIN, 0},
                          {out_.has_pending() ? out_.fd() : -1, POLLOUT, 0},
                          {err_.has_pending() ? err_.fd() : -1, POLLOUT, 0}};
  const size_t first_stream = fds.size();
  const auto all = team_.streams();
  for (const auto* stream : all) {
    fds.push_back({stream->wants_more() ? stream->fd() : -1, POLLIN, 0});
  }
  for (const Worker& worker : team_.workers()) {
    fds.push_back({worker.process.end_fd(), POLLIN, 0});
  }
  if (::poll(fds.data(), fds.size(), timeout_ms) <= 0) return false;
  if (fds[0].revents != 0) {
    while (const auto signal = signals_.take()) handle(SignalCame{*signal});
  }
  if (fds[1].revents != 0) handle(peers_->take_news());
  for (size_t i = 0; i < all.size(); ++i) {
    if (fds[first_stream + i].revents != 0) all[i]->read_some();
  }
  out_.write_some();
  err_.write_some();
  if (out_.is_broken()) handle(output_closed());
  return true;
}

OutputClosed Agent::output_closed() const {
  const std::string& host = rendezvous_.group.self().host;
  if (out_.is_reader_gone()) {
    return {.why = "the reader of the output of " + host + " is gone",
            .exit_code = kExitSignal + SIGPIPE};
  }
  return {.why = fmt::format("the agent on {} {}", host, out_.why_broken()),
          .exit_code = kExitFailed};
}

// Each attempt has its own keys, so that values of an earlier attempt are not
// mistaken for new ones.
void Agent::use_keys_of_attempt() {
  rendezvous_.store.set_prefix(
      fmt::format("{}attempt {}/", rendezvous_.prefix, attempt_));
}

void Agent::drain() {
  Stopwatch idle;
  for (;;) {
    const auto& workers = team_.workers();
    const bool has_open =
        std::any_of(workers.begin(), workers.end(), [](const Worker& worker) {
          return !worker.process.is_running() &&
                 (worker.out.fd() >= 0 || worker.err.fd() >= 0);
        });
    const bool is_held_up = out_.has_pending() || err_.has_pending();
    if (!has_open && !is_held_up) return;
    if (wait_for_events(kDrainPollMs)) {
      idle.restart();
    } else if (is_held_up) {
      const bool is_in_a_hurry =
          state_.requested_signal != 0 || state_.reason == EndReason::kOutput;
      if (is_in_a_hurry && idle.seconds() > kConsoleTimeoutS) return;
    } else if (idle.seconds() > kDrainTimeoutS) {
      for (Worker& worker : team_.workers()) {
        if (worker.process.is_running()) continue;
        worker.out.finish();
        worker.err.finish();
      }
    }
  }
}

void Agent::handle(const AgentEvent& event) {
  const AgentContext context{.now_s = Moment::now().steady_s,
                             .host = rendezvous_.group.self().host,
                             .has_restarts_left = has_restarts_left(),
                             .may_leave = may_leave(),
                             .grace_s = options_.grace_s};
  auto [state, actions] = next_state(state_, event, context);
  state_ = std::move(state);
  announce(actions.announcement);
  if (actions.signal != 0) team_.send(actions.signal, actions.targets);
  if (actions.notifies_peers && peers_) peers_->announce_end(state_.notice);
}

void Agent::announce(Announcement announcement) {
  control::ControlHeader& header = block_.header();
  const auto attempt = static_cast<uint32_t>(attempt_) + 1;
  switch (announcement) {
    case Announcement::kNone:
      break;
    case Announcement::kAttemptOver:
      header.over = attempt;
      break;
    case Announcement::kRegroup:
      header.regroup = attempt;
      break;
    case Announcement::kClosed:
      header.is_closed = 1;
      break;
  }
}

// Returns true if a signal arrived, now or while the last attempt ended.
bool Agent::is_asked_to_end() {
  const int signal = signals_.take_last().value_or(state_.requested_signal);
  if (signal == 0) return false;
  handle(SignalCameBetweenAttempts{signal});
  return true;
}

bool Agent::has_restarts_left() const {
  return restarts_ < options_.max_restarts;
}

// Returns true if the job can go on without this node and its store.
bool Agent::may_leave() const {
  const auto others = static_cast<int>(rendezvous_.group.nodes.size()) - 1;
  return options_.is_elastic() && !rendezvous_.serves_store &&
         others >= options_.min_nodes;
}

std::vector<Failure> Agent::own_failures() const {
  AttemptFacts attempt{.node_rank = rendezvous_.group.node_rank,
                       .host = rendezvous_.group.self().host,
                       .began_s = began_.steady_s,
                       .keeps_logs = logs_.is_kept()};
  if (state_.is_ending()) {
    attempt.ending_began_s = state_.ending_began_s;
    attempt.ending_signal = state_.first_signal;
  }
  return worker_failures(team_.workers(), attempt);
}

SharedEnd Agent::end_attempt() {
  SharedEnd end{.notice = state_.notice, .failures = own_failures()};
  write_missing_error_files(end.failures, team_.workers());
  end.is_complete = !peers_;
  if (!peers_) return end;
  peers_.reset();
  if (!state_.is_ending()) return end;
  if (state_.is_leaving) announce_leaving(rendezvous_);
  return share_failures(rendezvous_, state_.notice, std::move(end.failures),
                        grace_s(state_, options_.grace_s) +
                            std::max(kShareTimeoutS, options_.keep_alive_s));
}

Decision Agent::decide(const SharedEnd& end) {
  if (!state_.is_ending() || state_.is_leaving) return {};
  const bool is_fault = end.notice.is_fault;
  const bool is_of_workers =
      state_.reason == EndReason::kWorker || state_.reason == EndReason::kPeer;
  if (is_fault && is_of_workers) {
    faults_.add(
        {.root = root_cause(end.failures),
         .why = end.notice.why,
         .is_node_lost = loss_.has_value(),
         .began_s = began_.steady_s,
         .failed_s = state_.ending_began_s,
         .steps = has_progress_ ? std::optional(steps_done()) : std::nullopt});
  }
  const bool is_allowed =
      !is_fault || (has_restarts_left() && !faults_.is_stuck() &&
                    exit_code_of(end.failures) != kExitBadUsage);
  const bool restarts = end.notice.may_restart && is_allowed &&
                        (end.is_complete || options_.is_elastic()) &&
                        state_.reason != EndReason::kOutput;
  // Clocks, limits and timeouts may differ from node to node.
  return decide_together(
      rendezvous_,
      {.restarts = restarts, .delay_s = is_fault ? faults_.delay_s() : 0},
      options_.is_elastic());
}

void Agent::report_restart(const SharedEnd& end, double delay_s) {
  const Failure* root = root_cause(end.failures);
  std::string why = end.notice.why;
  // The notice names the worker that was seen to end first. That worker may
  // only have lost the one that failed.
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

bool Agent::wait_before_restart(double delay_s) {
  err_.write_some();
  const bool is_asked_before = is_asked_to_end();
  if (!is_asked_before) wait_for(signals_.fd(), POLLIN, deadline_in(delay_s));
  if (!is_asked_before && !is_asked_to_end()) return true;
  // In an elastic job, the others notice in the next attempt that this node is
  // missing, and go on without it.
  if (options_.is_elastic() && !rendezvous_.serves_store) return false;
  // The other agents are about to begin the next attempt, so the notice is
  // published under the keys of that attempt.
  if (rendezvous_.group.nodes.size() > 1) {
    use_keys_of_attempt();
    share_failures(rendezvous_, state_.notice, {}, /*timeout_s=*/0);
  }
  return false;
}

// Ends the workers that were kept for an attempt that will not take place.
void Agent::end_waiting() {
  handle(JobConcluded());
  while (team_.is_alive()) {
    team_.note_ends();
    handle(Tick());
    wait_for_events(kClosingPollMs);
  }
  team_.kill_leftovers();
  drain();
}

int Agent::conclude(const std::vector<Failure>& failures) {
  end_waiting();
  if (rendezvous_.group.nodes.size() > 1)
    leave(rendezvous_, state_.notice.lost_node);
  err_.add(faults_.text());
  if (faults_.is_stuck()) err_.add(faults_.why_stuck());
  const int code = exit_code(failures);
  if (code == kExitBadUsage && options_.max_restarts > 0) {
    err_.add(
        fmt::format("[launch] no restart: exit code {} says that an "
                    "option can't be used\n",
                    code));
  }
  const Failure* root = root_cause(failures);
  const bool has_cause = root != nullptr && root->is_cause;
  if (code == kExitPreempted && loss_) {
    err_.add("[launch] the job lost a node or its network, and can continue: " +
             *loss_ + "\n");
    if (has_cause && !root->is_consequence) err_.add(failure_report(failures));
  } else if (code == kExitPreempted) {
    err_.add("[launch] the job was preempted, and can continue: " +
             state_.notice.why + "\n");
  } else {
    if (state_.reason == EndReason::kSignal ||
        (state_.is_ending() && !has_cause)) {
      err_.add(
          fmt::format("[launch] the job was ended: {}{}\n", state_.notice.why,
                      was_preempted(failures)
                          ? "; the workers saved what they need to continue"
                          : ""));
    }
    if (has_cause) {
      pass_on_root_cause(*root);
      err_.add(failure_report(failures));
    }
  }
  drain();
  return exit_code(failures);
}

bool Agent::is_cut_off() const {
  return state_.notice.exit_code == kExitPreempted &&
         state_.notice.lost_node < 0 && state_.requested_signal == 0;
}

int Agent::exit_code(const std::vector<Failure>& failures) const {
  if (state_.notice.exit_code != 0) return state_.notice.exit_code;
  if (was_preempted(failures)) return kExitPreempted;
  switch (state_.reason) {
    case EndReason::kNone:
      return kExitDone;
    case EndReason::kWorker:
    case EndReason::kPeer: {
      // The loss of a node looks like a failure to the workers.
      const int code = exit_code_of(failures);
      return code == kExitFailed && loss_ ? kExitPreempted : code;
    }
    case EndReason::kSignal:
      return kExitSignal + state_.first_signal;
    case EndReason::kOutput:
      break;
  }
  return kExitFailed;
}

}  // namespace lockstep::launch
