#include "lockstep/launch/agent/agent_state.h"

#include <csignal>
#include <utility>

#include <fmt/format.h>

#include "lockstep/base/exit_code.h"
#include "lockstep/base/interrupt.h"
#include "lockstep/launch/options/option_values.h"

namespace lockstep::launch {
namespace {

using Targets = WorkerTeam::Targets;

constexpr double kGraceAfterFailureS = 5;
constexpr double kGraceAfterSignalS = 30;
// A worker that lost another rank needs a moment to notice, and then waits.
constexpr double kGraceToWaitS = 10;
// When nodes join or leave, a worker waits at the end of its present step.
constexpr double kGraceToRegroupS = 60;
constexpr double kGraceOfClosingS = 5;

Notice notice_of_signal(const AgentState& state, int signal,
                        const AgentContext& context) {
  return {.why = fmt::format("the agent on {} got {}", context.host,
                             signal_name(signal)),
          .may_restart = state.is_leaving,
          .is_fault = !state.is_leaving};
}

// One transition: a function for each event.
class Step {
 public:
  Step(AgentState state, const AgentContext& context)
      : context_(context), next_{.state = std::move(state), .actions = {}} {}

  void operator()(const WorkersFailed& event) {
    if (state().is_ending()) return;
    begin_ending(EndReason::kWorker, SIGTERM, event.notice);
  }

  void operator()(const SignalCame& event) {
    const int first = std::exchange(state().requested_signal, event.signal);
    const double later_s = context_.now_s - state().ending_began_s;
    if (first != 0 && is_same_request(first, event.signal, later_s)) {
      // A scheduler's signals to the agent are passed on one at a time.
      if (state().phase != AgentPhase::kKilling) {
        send(event.signal, Targets::kAll);
      }
    } else if (!state().is_ending()) {
      state().is_leaving = context_.may_leave;
      begin_ending(EndReason::kSignal, event.signal,
                   notice_of_signal(state(), event.signal, context_));
    } else if (state().phase != AgentPhase::kKilling) {
      // A second request means that the user does not want to wait.
      kill(Targets::kAll);
    }
  }

  void operator()(const SignalCameBetweenAttempts& event) {
    state().requested_signal = event.signal;
    state().reason = EndReason::kSignal;
    state().first_signal = event.signal;
    state().notice = notice_of_signal(state(), event.signal, context_);
  }

  void operator()(const PeerNews& event) {
    state().are_peers_done = event.all_done;
    if (event.notice && !state().is_ending()) {
      begin_ending(EndReason::kPeer, SIGTERM, *event.notice);
    }
  }

  void operator()(const OutputClosed& event) {
    if (state().is_ending()) return;
    begin_ending(EndReason::kOutput, SIGTERM,
                 {.why = event.why, .exit_code = event.exit_code});
  }

  void operator()(const Tick&) {
    const double passed_s = context_.now_s - state().ending_began_s;
    if (state().phase == AgentPhase::kEnding &&
        passed_s > grace_s(state(), context_.grace_s)) {
      kill(Targets::kAtWork);
    } else if (state().phase == AgentPhase::kClosing &&
               passed_s > kGraceOfClosingS) {
      kill(Targets::kAll);
    }
  }

  void operator()(const JobConcluded&) {
    state().phase = AgentPhase::kClosing;
    state().ending_began_s = context_.now_s;
    // The other nodes continue from the work of this node's workers.
    if (state().is_leaving) kill(Targets::kAll);
    next_.actions.announcement = Announcement::kClosed;
  }

  AgentTransition take() { return std::move(next_); }

 private:
  AgentState& state() { return next_.state; }

  void begin_ending(EndReason reason, int signal, const Notice& notice) {
    state().phase = AgentPhase::kEnding;
    state().ending_began_s = context_.now_s;
    state().reason = reason;
    state().notice = notice;
    state().first_signal = signal;
    // A worker that lost another rank begins to wait without being told.
    state().keeps_waiting_workers =
        notice.may_restart && (context_.has_restarts_left || !notice.is_fault);
    if (state().keeps_waiting_workers) {
      next_.actions.announcement =
          notice.is_fault ? Announcement::kAttemptOver : Announcement::kRegroup;
    }
    send(signal,
         state().keeps_waiting_workers ? Targets::kWillNotWait : Targets::kAll);
    next_.actions.notifies_peers = true;
  }

  void kill(Targets targets) {
    state().phase = AgentPhase::kKilling;
    send(SIGKILL, targets);
  }

  void send(int signal, Targets targets) {
    next_.actions.signal = signal;
    next_.actions.targets = targets;
  }

  const AgentContext& context_;
  AgentTransition next_;
};

}  // namespace

AgentTransition next_state(AgentState state, const AgentEvent& event,
                           const AgentContext& context) {
  Step step(std::move(state), context);
  std::visit(step, event);
  return step.take();
}

AgentState state_of_next_attempt(const AgentState& state) {
  AgentState next;
  next.requested_signal = state.requested_signal;
  next.is_leaving = state.is_leaving;
  return next;
}

double grace_s(const AgentState& state, std::optional<double> option_s) {
  if (option_s) return *option_s;
  if (state.keeps_waiting_workers && !state.notice.is_fault) {
    return kGraceToRegroupS;
  }
  // The workers can also save when their output is lost, but not without the
  // other nodes.
  const int code = state.notice.exit_code;
  const bool may_save = state.reason == EndReason::kSignal ||
                        (code != 0 && code != kExitPreempted);
  if (may_save) return kGraceAfterSignalS;
  return state.keeps_waiting_workers ? kGraceToWaitS : kGraceAfterFailureS;
}

}  // namespace lockstep::launch
