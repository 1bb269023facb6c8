#pragma once

#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "lockstep/base/stopwatch.h"
#include "lockstep/control/control_block.h"
#include "lockstep/control/snapshot_memory.h"
#include "lockstep/launch/agent/farewell.h"
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

/// Runs this node's workers: moves their output, passes signals on, and when
/// one fails or hangs, here or on another node, replaces it while there are
/// restarts left, or else ends all; and says why.
class Agent {
 public:
  Agent(const RunOptions& options, const std::vector<std::string>& command,
        Meeting& meeting, SignalWatch& signals);

  /// Returns the exit code: 0, 1 if a worker failed, 128 and the signal's
  /// number if a signal ended the job.
  int run();

 private:
  enum class Reason { kNone, kWorker, kSignal, kPeer, kOutput };
  using Whom = WorkerTeam::Whom;

  void begin_attempt();
  void watch_workers();
  void look_for_failures();
  void look_for_waiting();
  void look_for_hangs();
  void look_for_progress();
  SharedEnd end_attempt();
  Decision decide(const SharedEnd& end);
  bool may_restart() const;
  bool may_leave() const;
  void watch_peers();
  bool meet_again(const SharedEnd& end);
  void end_by_signal();
  uint64_t steps_done() const;
  void tell_of_restart(const SharedEnd& end, double delay_s);
  void end_waiting();
  // False if a signal came.
  bool wait_before_restart(double delay_s);
  // False if nothing came.
  bool wait_for_events(int timeout_ms);
  void on_signal(int signal);
  Notice notice_of_signal(int signal) const;
  void use_keys_of_attempt();
  void on_peer_news();
  void begin_ending(Reason reason, int signal, const Notice& notice);
  double grace_s() const;
  bool is_job_over() const;
  void drain();
  std::vector<WorkerStream*> streams();
  std::vector<Failure> own_failures() const;
  Failure failure_of(const Worker& worker) const;
  int conclude(const std::vector<Failure>& failures);
  int exit_code(const std::vector<Failure>& failures) const;
  void keep_error_file(const Failure& root) const;

  const RunOptions& options_;
  Meeting& meeting_;
  SignalWatch& signals_;
  Console out_;
  Console err_;
  LogFiles logs_;
  control::ControlBlock block_;
  control::SnapshotHolder snapshots_;
  WorkerTeam team_;
  FaultLog faults_;
  int attempt_ = 0;   // begun before this one
  int restarts_ = 0;  // of these after a failure

  // Of this attempt.
  Moment began_;
  bool has_progress_ = false;         // its steps have begun
  std::optional<Stopwatch> waiting_;  // since the first worker waits
  std::unique_ptr<PeerWatch> peers_;  // null without other nodes
  Reason reason_ = Reason::kNone;     // why the workers are being ended
  Notice notice_;                     // the same for others
  int ending_signal_ = 0;             // what they got first
  Moment ending_began_;
  Stopwatch ending_;
  bool is_sparing_ = false;  // workers that wait for the next attempt
  bool is_killing_ = false;
  bool are_peers_done_ = false;

  int signal_ = 0;           // somebody wants this agent to end
  bool is_leaving_ = false;  // and the job goes on without this node
};

}  // namespace lockstep::launch
