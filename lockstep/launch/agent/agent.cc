#include "lockstep/launch/agent/agent.h"

#include <algorithm>
#include <csignal>
#include <poll.h>
#include <unistd.h>
#include <utility>

#include <fmt/format.h>

#include "lockstep/base/exit_codes.h"
#include "lockstep/base/interrupt.h"
#include "lockstep/launch/agent/farewell.h"
#include "lockstep/launch/options/signals.h"
#include "lockstep/launch/output/printable.h"
#include "lockstep/launch/rendezvous/master.h"
#include "lockstep/launch/workers/hang.h"
#include "lockstep/launch/workers/thread_stacks.h"
#include "lockstep/shm/fixed_text.h"

namespace lockstep::launch {
namespace {

constexpr double kGraceAfterFailureS = 5;
constexpr double kGraceAfterSignalS = 30;
// Workers that are about to wait don't wake the agent.
constexpr int kHurryMs = 5;
constexpr double kGraceToWaitS = 10;
// Beyond the wait for other nodes: back-off, graces and reports.
constexpr double kAgentsPatienceS = 300;
// To the end of the step that they are in.
constexpr double kGraceToRegroupS = 60;
// Workers that offer memory for snapshots don't wake it either.
constexpr double kLongestSleepS = 1;
constexpr double kReapEveryS = 5;
// The end of the rank that others miss is seen sooner than that.
constexpr double kBlamePatienceS = 1;
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
      block_(control::ControlBlock::create(options.workers)),
      snapshots_(block_),
      team_(options, command, logs_, block_, out_, err_),
      attempt_(meeting.attempt) {
  if (!options.redirects.is_none() || !options.tee.is_none()) logs_.keep();
  begin_attempt();
}

void Agent::begin_attempt() {
  began_ = Moment::now();
  reason_ = Reason::kNone;
  notice_ = {};
  ending_signal_ = 0;
  ending_began_ = {};
  is_killing_ = false;
  are_peers_done_ = false;
  use_keys_of_attempt();
  has_progress_ = false;
  is_sparing_ = false;
  waiting_.reset();
  // Who waited may have ended meanwhile.
  team_.note_ends();
  team_.note_waits();
  const bool may_go_on = may_restart() || options_.is_elastic();
  block_.header().may_wait = may_go_on ? 1 : 0;
  block_.header().wait_limit_s.store(
      static_cast<uint32_t>(options_.join_timeout_s + kAgentsPatienceS));
  if (attempt_ > 0) logs_.begin_attempt(attempt_);
  const Endpoint master = begin_round(meeting_, options_, attempt_);
  hand_out_keys(meeting_, block_, attempt_);
  team_.begin(meeting_.group, master, attempt_);
  watch_peers();
}

void Agent::watch_peers() {
  const Group& group = meeting_.group;
  if (group.nodes.size() == 1 && !options_.is_elastic()) return;
  const bool has_room =
      group.nodes.size() < static_cast<size_t>(options_.nodes);
  const PeerWatchOptions options{.keep_alive_s = options_.keep_alive_s,
                                 .is_elastic = options_.is_elastic(),
                                 .expects_nodes = options_.is_elastic() &&
                                                  meeting_.serves_store &&
                                                  has_room};
  peers_ = std::make_unique<PeerWatch>(meeting_, options);
}

int Agent::run() {
  for (;;) {
    watch_workers();
    team_.end_leftovers();
    team_.note_ends();
    drain();
    const SharedEnd end = end_attempt();
    const Decision decision = decide(end);
    if (!decision.restarts) return conclude(end.failures);
    if (signal_ == 0) tell_of_restart(end, decision.delay_s);
    ++attempt_;
    if (end.notice.is_fault) ++restarts_;
    const bool goes_on = wait_before_restart(decision.delay_s) &&
                         (!options_.is_elastic() || meet_again(end));
    if (!goes_on) return conclude(end.failures);
    begin_attempt();
    if (end.notice.is_fault) faults_.recovered(Moment::now().steady_s);
  }
}

void Agent::watch_workers() {
  const double sleep_s = std::min(options_.monitor_interval_s, kLongestSleepS);
  const int timeout_ms = std::max(1, static_cast<int>(sleep_s * 1000));
  Stopwatch since_reaped;
  bool has_told_done = false;
  for (;;) {
    look_for_failures();
    look_for_waiting();
    look_for_hangs();
    look_for_progress();
    snapshots_.look();
    if (!team_.is_at_work() && is_job_over()) return;
    if (!team_.is_alive() && !has_told_done && peers_) {
      peers_->tell_done();
      has_told_done = true;
    }
    if (reason_ != Reason::kNone && !is_killing_ &&
        ending_.seconds() > grace_s()) {
      is_killing_ = true;
      team_.send(SIGKILL, Whom::kAtWork);
    }
    if (since_reaped.seconds() > kReapEveryS) {
      team_.reap_orphans();
      since_reaped.restart();
    }
    wait_for_events(reason_ == Reason::kNone ? timeout_ms : kHurryMs);
  }
}

void Agent::look_for_failures() {
  if (!team_.note_ends() || reason_ != Reason::kNone) return;
  const auto workers = own_failures();
  begin_ending(Reason::kWorker, SIGTERM, notice_of(*root_cause(workers)));
}

// A worker waits because another one was lost. If none was, neither here nor on
// another node, something is wrong with what the workers do together.
void Agent::look_for_waiting() {
  team_.note_waits();
  if (team_.count_waiting() == 0 || reason_ != Reason::kNone) return;
  if (!waiting_) waiting_.emplace();
  if (waiting_->seconds() < kBlamePatienceS) return;
  for (const Worker& worker : team_.workers()) {
    if (!worker.waits) continue;
    begin_ending(
        Reason::kWorker, SIGTERM,
        {.why = fmt::format(
             "rank {} on {} gave up: {}", worker.rank,
             meeting_.group.self().host,
             printable(shm::text_of(team_.slot_of(worker).reason), 400)),
         .may_restart = true});
    return;
  }
}

// Ranks wait for each other, so when nothing moves any more the one that has
// come least far is the one that hangs.
void Agent::look_for_hangs() {
  if (options_.hang_timeout_s <= 0 || reason_ != Reason::kNone) return;
  const auto hung = hung_worker(team_, options_.hang_timeout_s);
  if (!hung) return;
  Worker& worker = team_.workers()[hung->index];
  worker.verdict = hung->how;
  worker.stacks = stacks_of(worker.process.pid());
  worker.process.send(SIGKILL);
}

// Of a program that tells: when its steps go on.
void Agent::look_for_progress() {
  if (has_progress_ || reason_ != Reason::kNone) return;
  uint64_t steps = 0;
  for (const Worker& worker : team_.workers()) {
    const control::WorkerSlot& slot = team_.slot_of(worker);
    if (slot.phase.load() <= control::Phase::kStart) return;
    steps = std::max(steps, slot.first_steps.load());
  }
  has_progress_ = true;
  faults_.went_on(Moment::now().steady_s, steps);
}

uint64_t Agent::steps_done() const {
  uint64_t steps = 0;
  for (const Worker& worker : team_.workers()) {
    steps = std::max(steps, team_.slot_of(worker).steps.load());
  }
  return steps;
}

bool Agent::is_job_over() const {
  if (reason_ != Reason::kNone) return true;
  return team_.count_waiting() == 0 && (!peers_ || are_peers_done_);
}

bool Agent::may_restart() const { return restarts_ < options_.max_restarts; }

// The others can do without this node and its store.
bool Agent::may_leave() const {
  const auto others = static_cast<int>(meeting_.group.nodes.size()) - 1;
  return options_.is_elastic() && !meeting_.serves_store &&
         others >= options_.min_nodes;
}

// False if a signal came.
bool Agent::meet_again(const SharedEnd& end) {
  struct Stopped {};
  try {
    launch::meet_again(meeting_, options_, end.staying, attempt_, [this] {
      while (const auto signal = signals_.take()) signal_ = *signal;
      if (signal_ != 0) throw Stopped();
      wait_for_events(/*timeout_ms=*/0);
    });
    return true;
  } catch (const Stopped&) {
    end_by_signal();
    return false;
  }
}

void Agent::end_by_signal() {
  reason_ = Reason::kSignal;
  ending_signal_ = signal_;
  notice_ = notice_of_signal(signal_);
}

std::vector<WorkerStream*> Agent::streams() {
  std::vector<WorkerStream*> all;
  for (Worker& worker : team_.workers()) {
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
  for (const Worker& worker : team_.workers()) {
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
                             meeting_.group.self().host, signal_name(signal)),
          .may_restart = is_leaving_,
          .is_fault = !is_leaving_};
}

void Agent::on_signal(int signal) {
  const int first = std::exchange(signal_, signal);
  if (first != 0 && is_same_request(first, signal, ending_.seconds())) {
    if (!is_killing_) team_.send(signal);
    return;
  }
  if (reason_ == Reason::kNone) {
    is_leaving_ = may_leave();
    begin_ending(Reason::kSignal, signal, notice_of_signal(signal));
  } else if (!is_killing_) {  // asked twice: no more patience
    is_killing_ = true;
    team_.send(SIGKILL);
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
  ending_began_ = Moment::now();
  ending_.restart();
  // Who lost another rank comes to wait by itself.
  is_sparing_ = notice.may_restart && (may_restart() || !notice.is_fault);
  // A signal is no reason to give up: there is a checkpoint to be written.
  auto& word = notice.is_fault ? block_.header().over : block_.header().regroup;
  if (is_sparing_) word = static_cast<uint32_t>(attempt_) + 1;
  team_.send(signal, is_sparing_ ? Whom::kWillNotWait : Whom::kAll);
  if (peers_) peers_->tell(notice);
}

double Agent::grace_s() const {
  const double usual_s = is_sparing_ && !notice_.is_fault ? kGraceToRegroupS
                         : reason_ == Reason::kSignal     ? kGraceAfterSignalS
                         : is_sparing_                    ? kGraceToWaitS
                                                          : kGraceAfterFailureS;
  return options_.grace_s.value_or(usual_s);
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
      const bool is_in_a_hurry = signal_ != 0 || reason_ == Reason::kOutput;
      if (is_in_a_hurry && idle.seconds() > kConsolePatienceS) return;
    } else if (idle.seconds() > kDrainPatienceS) {
      for (Worker& worker : team_.workers()) {
        if (worker.process.is_running()) continue;
        worker.out.finish();
        worker.err.finish();
      }
    }
  }
}

}  // namespace lockstep::launch
