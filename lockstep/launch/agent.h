#pragma once

#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "lockstep/base/stopwatch.h"
#include "lockstep/launch/console.h"
#include "lockstep/launch/failure.h"
#include "lockstep/launch/farewell.h"
#include "lockstep/launch/fault_log.h"
#include "lockstep/launch/log_files.h"
#include "lockstep/launch/peer_watch.h"
#include "lockstep/launch/rendezvous.h"
#include "lockstep/launch/run_options.h"
#include "lockstep/launch/signal_watch.h"
#include "lockstep/launch/worker_team.h"

namespace lockstep::launch {

/// Runs this node's workers: moves their output, passes signals on, ends all
/// when one fails, here or on another node, starts all again while there are
/// restarts left, and says why.
class Agent {
 public:
  Agent(const RunOptions& options, const std::vector<std::string>& command,
        Meeting& meeting, SignalWatch& signals);

  /// Returns the exit code: 0, 1 if a worker failed, 128 and the signal's
  /// number if a signal ended the job.
  int run();

 private:
  enum class Reason { kNone, kWorker, kSignal, kPeer, kOutput };

  void begin_attempt();
  void watch_workers();
  SharedEnd end_attempt();
  Decision decide(const SharedEnd& end);
  void tell_of_restart(const SharedEnd& end, double delay_s);
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
  const std::vector<std::string>& command_;
  FaultLog faults_;
  int attempt_ = 0;  // restarts so far

  // Of this attempt.
  double start_time_s_ = 0;
  std::optional<WorkerTeam> team_;
  std::unique_ptr<PeerWatch> peers_;  // null on a single node
  Reason reason_ = Reason::kNone;     // why the workers are being ended
  Notice notice_;                     // the same for others
  int ending_signal_ = 0;             // what they got first
  double ending_time_s_ = 0;          // since 1970
  Stopwatch ending_;
  bool is_killing_ = false;
  bool are_peers_done_ = false;

  int signal_ = 0;  // somebody wants this agent to end
};

}  // namespace lockstep::launch
