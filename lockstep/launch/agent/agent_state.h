#pragma once

#include <optional>
#include <string>
#include <variant>

#include "lockstep/launch/agent/notice.h"
#include "lockstep/launch/agent/peer_watch.h"
#include "lockstep/launch/workers/worker_team.h"

// Decides what an agent does about an event, as a pure function that touches no
// process, clock or file. Agent::handle() carries out the actions.
//
//            WorkersFailed, SignalCame,
//            PeerNews with a notice, OutputClosed
//   kRunning ------------------------------------> kEnding
//                                                    |  Tick after the grace,
//                                                    |  or a second SignalCame
//                                                    v
//            JobConcluded (from any of them)       kKilling
//   kClosing: waiting workers may exit on their own; then kKilling as well
namespace lockstep::launch {

/// Reason for which an agent ends its workers.
enum class EndReason { kNone, kWorker, kSignal, kPeer, kOutput };

/// Phase of an attempt from the agent's point of view.
enum class AgentPhase {
  kRunning,  ///< the workers are working, or all have ended with success
  kEnding,   ///< they were asked to end, or to wait for the next attempt
  kKilling,  ///< they got SIGKILL
  kClosing,  ///< no attempt follows: waiting workers should exit
};

/// All state that the agent's next action depends on.
struct AgentState {
  // State of this attempt.
  AgentPhase phase = AgentPhase::kRunning;
  EndReason reason = EndReason::kNone;
  Notice notice{};            ///< notice about `reason` for the other nodes
  int first_signal = 0;       ///< signal with which workers were asked to end
  double ending_began_s = 0;  ///< start of kEnding or kClosing; steady clock
  /// Whether workers that will wait for the next attempt are kept.
  bool keeps_waiting_workers = false;
  bool are_peers_done = false;  ///< the workers of all nodes ended with success

  // State of the whole job.
  int requested_signal = 0;  ///< last signal that asked this agent to end
  bool is_leaving = false;   ///< the job goes on without this node

  bool is_ending() const { return reason != EndReason::kNone; }
};

/// A worker failed, or waits although no other worker was lost.
struct WorkersFailed {
  Notice notice;
};
/// A signal arrived that asks the agent to end.
struct SignalCame {
  int signal = 0;
};
/// Such a signal arrived between attempts, when no workers are working.
struct SignalCameBetweenAttempts {
  int signal = 0;
};
/// The agent can't write its output any more.
struct OutputClosed {
  std::string why;
  int exit_code = 0;  ///< exit code of the job
};
/// Time has passed.
struct Tick {};
/// The last attempt has ended.
struct JobConcluded {};

using AgentEvent =
    std::variant<WorkersFailed, SignalCame, SignalCameBetweenAttempts, PeerNews,
                 OutputClosed, Tick, JobConcluded>;

/// Facts that decide how an event is handled.
struct AgentContext {
  double now_s = 0;  ///< steady clock
  std::string host;  ///< name of this node
  bool has_restarts_left = false;
  bool may_leave = false;         ///< the others can go on without this node
  std::optional<double> grace_s;  ///< --grace, if it was given
};

/// Message to the workers through the control block.
enum class Announcement {
  kNone,
  kAttemptOver,  ///< wait now for the next attempt
  kRegroup,      ///< wait for the next attempt after this step
  kClosed,       ///< no attempt follows
};

/// Actions that the agent must carry out, in this order.
struct AgentActions {
  Announcement announcement = Announcement::kNone;
  int signal = 0;  ///< signal to send to workers; 0: none
  WorkerTeam::Targets targets = WorkerTeam::Targets::kAll;
  bool notifies_peers = false;  ///< publish the state's notice
};

struct AgentTransition {
  AgentState state;
  AgentActions actions;
};

AgentTransition next_state(AgentState state, const AgentEvent& event,
                           const AgentContext& context);

/// Returns the state at the start of the next attempt.
AgentState state_of_next_attempt(const AgentState& state);

/// Returns the time from the first signal to SIGKILL while workers end.
/// `option_s` is the value of --grace.
double grace_s(const AgentState& state, std::optional<double> option_s);

}  // namespace lockstep::launch
