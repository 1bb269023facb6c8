#pragma once

#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "lockstep/base/stopwatch.h"
#include "lockstep/control/control_block.h"
#include "lockstep/control/snapshot_memory.h"
#include "lockstep/launch/agent/agent_state.h"
#include "lockstep/launch/agent/agreement.h"
#include "lockstep/launch/agent/peer_watch.h"
#include "lockstep/launch/agent/signal_watch.h"
#include "lockstep/launch/failure/clock.h"
#include "lockstep/launch/failure/failure.h"
#include "lockstep/launch/failure/fault_log.h"
#include "lockstep/launch/options/run_options.h"
#include "lockstep/launch/output/console.h"
#include "lockstep/launch/output/log_files.h"
#include "lockstep/launch/rendezvous/rendezvous.h"
#include "lockstep/launch/workers/worker_team.h"

namespace lockstep::launch {

/// Runs this node's workers and forwards their output and signals. When a
/// worker fails or hangs, here or on another node, the agent replaces it while
/// there are restarts left. Otherwise it ends all workers and says why.
///
/// agent_state.h decides what to do on which event. This class finds the events
/// and carries out the actions.
class Agent {
 public:
  Agent(const RunOptions& options, const std::vector<std::string>& command,
        Rendezvous& rendezvous, SignalWatch& signals);

  /// Returns the exit code, as launch::run() does.
  int run();

  /// Returns whether the job's store was lost, so that the job may go on
  /// without this node.
  bool is_cut_off() const;

 private:
  // An attempt lasts from the start of the workers to the end of the last one.
  void begin_attempt();
  void begin_peer_watch();
  void use_keys_of_attempt();
  void watch_workers();
  SharedEnd end_attempt();

  // Each looks for one kind of event, and calls handle() if it finds one.
  void check_failures();
  void check_waiting();
  void check_hangs();
  void warn_about_silent_workers(double timeout_s);
  void check_progress();
  // Returns false if no event arrived in time.
  bool wait_for_events(int timeout_ms);
  OutputClosed output_closed() const;

  void handle(const AgentEvent& event);
  void announce(Announcement announcement);
  // Called before the next attempt.
  bool is_asked_to_end();

  // Called between attempts, and at the end.
  Decision decide(const SharedEnd& end);
  void report_restart(const SharedEnd& end, double delay_s);
  // Both return false if a signal arrived, and the second one also if a node
  // was lost and too few are left.
  bool wait_before_restart(double delay_s);
  bool join_next_attempt(const SharedEnd& end);
  void end_waiting();
  int conclude(const std::vector<Failure>& failures);
  int exit_code(const std::vector<Failure>& failures) const;
  // Waits for the last output of workers that have ended.
  void drain();

  bool has_restarts_left() const;
  bool may_leave() const;
  bool is_job_over() const;
  uint64_t steps_done() const;
  std::vector<Failure> own_failures() const;

  const RunOptions& options_;
  Rendezvous& rendezvous_;
  SignalWatch& signals_;
  Console out_;
  Console err_;
  LogFiles logs_;
  control::ControlBlock block_;
  control::SnapshotHolder snapshots_;
  WorkerTeam team_;
  FaultLog faults_;
  int attempt_ = 0;   // attempts before this one
  int restarts_ = 0;  // restarts after a failure
  bool has_warned_about_silent_workers_ = false;
  // The loss of a node or of the network in the last attempt, in words.
  std::optional<std::string> loss_;
  AgentState state_;

  // State of the present attempt.
  Moment began_;
  bool has_progress_ = false;               // training has begun
  std::optional<Stopwatch> since_waiting_;  // since the first worker waits
  std::unique_ptr<PeerWatch> peers_;        // null if there are no other nodes
};

}  // namespace lockstep::launch
