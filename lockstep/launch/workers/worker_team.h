#pragma once

#include <optional>
#include <string>
#include <vector>

#include "lockstep/control/control_block.h"
#include "lockstep/launch/failure/clock.h"
#include "lockstep/launch/options/run_options.h"
#include "lockstep/launch/output/console.h"
#include "lockstep/launch/output/log_files.h"
#include "lockstep/launch/output/worker_stream.h"
#include "lockstep/launch/rendezvous/endpoint.h"
#include "lockstep/launch/rendezvous/node.h"
#include "lockstep/launch/workers/orphan_reaper.h"
#include "lockstep/launch/workers/watchdog.h"
#include "lockstep/launch/workers/worker_process.h"

namespace lockstep::launch {

/// One of the agent's workers.
struct Worker {
  int rank = 0;
  int local_rank = 0;
  WorkerStream out;
  WorkerStream err;
  WorkerProcess process;
  std::string folder;  ///< of its log files
  WorkerEnd end{};
  std::optional<Moment> ended_at{};  ///< when its end was seen

  bool waits = false;    ///< for the next attempt
  std::string hang{};    ///< how it hung, if that is why it was ended
  std::string stacks{};  ///< where its threads were then

  bool has_failed() const {
    return ended_at && (end.signal != 0 || end.exit_code != 0);
  }
};

/// This node's workers, from their start to the end of the last of what they
/// started.
class WorkerTeam {
 public:
  enum class Targets {
    kAll,
    kAtWork,      ///< those that don't wait
    kWillNotWait  ///< those at work that have not promised to wait
  };

  WorkerTeam(const RunOptions& options, const std::vector<std::string>& command,
             const LogFiles& logs, const control::ControlBlock& block,
             Console& out, Console& err);

  /// Starts an attempt: those that wait are given their place in it, and a new
  /// process takes the place of every other. Throws LaunchError or IoError.
  void begin(const Group& group, const Endpoint& master, int attempt);

  std::vector<Worker>& workers() { return workers_; }
  const std::vector<Worker>& workers() const { return workers_; }
  /// Whether one has not ended and does not wait.
  bool is_at_work() const;
  bool is_alive() const;
  int count_waiting() const;
  /// Notices who ended. Returns whether a worker failed.
  bool note_ends();
  /// Notices who waits.
  void note_waits();
  const control::WorkerSlot& slot_of(const Worker& worker) const {
    return block_.slot(worker.local_rank);
  }
  /// To workers and their groups. A stopped one is continued: it could not act
  /// on the signal otherwise.
  void send(int signal, Targets targets = Targets::kAll) const;
  /// Kills what those that ended have left, wherever it hides.
  void kill_leftovers() const;
  /// Takes notice of orphans that ended by themselves.
  void reap_orphans() const { orphans_.reap(); }

 private:
  Worker start(const Group& group, const Endpoint& master, int attempt,
               int local_rank);
  void assign_rank(const Group& group, int attempt, int local_rank) const;

  const RunOptions& options_;
  const std::vector<std::string>& command_;
  const LogFiles& logs_;
  const control::ControlBlock block_;
  Console& out_;
  Console& err_;
  // The workers' destructors come first, the guard's last.
  Watchdog watchdog_;
  OrphanReaper orphans_;
  std::vector<Worker> workers_;
};

}  // namespace lockstep::launch
