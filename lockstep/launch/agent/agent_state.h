#pragma once

#include <optional>
#include <string>
#include <variant>

#include "lockstep/launch/agent/notice.h"
#include "lockstep/launch/agent/peer_watch.h"
#include "lockstep/launch/workers/worker_team.h"

// What an agent does when something happens, as a pure function: no process,
// clock or file is touched here. Agent::handle() carries the actions out.
//
//            WorkersFailed, SignalCame,
//            PeerNews with a notice, OutputClosed
//   kRunning ------------------------------------> kEnding
//                                                    |  Tick after the grace,
//                                                    |  or a second SignalCame
//                                                    v
//            JobConcluded (from any of them)       kKilling
//   kClosing: waiting workers may exit by themselves; then kKilling, too
namespace lockstep::launch {

/// Why an agent ends its workers.
enum class EndReason { kNone, kWorker, kSignal, kPeer, kOutput };

/// How far an agent is in an attempt.
enum class AgentPhase {
  kRunning,  ///< the workers are at work, or have all ended well
  kEnding,   ///< they were asked to end, or to wait for the next attempt
  kKilling,  ///< they got SIGKILL
  kClosing,  ///< no attempt follows: those that waited for one are to exit
};

/// All that an agent's next act depends on.
struct AgentState {
  // Of this attempt.
  AgentPhase phase = AgentPhase::kRunning;
  EndReason reason = EndReason::kNone;
  Notice notice{};            ///< of the reason, for the other nodes
  int first_signal = 0;       ///< that the workers got, to end
  double ending_began_s = 0;  ///< kEnding, or kClosing; steady clock
  /// Workers that will wait for the next attempt are not ended.
  bool keeps_waiting_workers = false;
  bool are_peers_done = false;  ///< every node's workers have ended well

  // Of the whole job.
  int requested_signal = 0;  ///< the last one that asked this agent to end
  bool is_leaving = false;   ///< and the job goes on without this node

  bool is_ending() const { return reason != EndReason::kNone; }
};

/// A worker failed, or waits although none was lost.
struct WorkersFailed {
  Notice notice;
};
/// A signal came that asks the agent to end.
struct SignalCame {
  int signal = 0;
};
/// The same while no workers are at work, before the next attempt.
struct SignalCameBetweenAttempts {
  int signal = 0;
};
/// The agent can't write its output any more.
struct OutputClosed {
  std::string why;
  int exit_code = 0;  ///< of the job
};
/// Time has passed.
struct Tick {};
/// The last attempt has ended.
struct JobConcluded {};

using AgentEvent =
    std::variant<WorkersFailed, SignalCame, SignalCameBetweenAttempts, PeerNews,
                 OutputClosed, Tick, JobConcluded>;

/// What an event is judged by.
struct AgentContext {
  double now_s = 0;  ///< steady clock
  std::string host;  ///< of this node
  bool has_restarts_left = false;
  bool may_leave = false;         ///< the others can do without this node
  std::optional<double> grace_s;  ///< --grace, if it was given
};

/// What the control block tells the workers.
enum class Announcement {
  kNone,
  kAttemptOver,  ///< wait now for the next attempt
  kRegroup,      ///< wait for the next attempt after this step
  kClosed,       ///< no attempt follows
};

/// What the agent is to do, in this order.
struct AgentActions {
  Announcement announcement = Announcement::kNone;
  int signal = 0;  ///< to be sent to workers; 0: none
  WorkerTeam::Targets targets = WorkerTeam::Targets::kAll;
  bool tells_peers = false;  ///< the state's notice
};

struct AgentTransition {
  AgentState state;
  AgentActions actions;
};

AgentTransition next_state(AgentState state, const AgentEvent& event,
                           const AgentContext& context);

/// The state in which the next attempt begins.
AgentState state_of_next_attempt(const AgentState& state);

/// From the first signal to SIGKILL, while workers end. `option_s` is --grace.
double grace_s(const AgentState& state, std::optional<double> option_s);

}  // namespace lockstep::launch
