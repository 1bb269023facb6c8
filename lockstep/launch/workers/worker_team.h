#pragma once

#include <map>
#include <optional>
#include <string>
#include <vector>

#include "lockstep/base/child_process.h"
#include "lockstep/control/control_block.h"
#include "lockstep/launch/failure/clock.h"
#include "lockstep/launch/options/run_options.h"
#include "lockstep/launch/output/console.h"
#include "lockstep/launch/output/log_files.h"
#include "lockstep/launch/output/worker_stream.h"
#include "lockstep/launch/rendezvous/endpoint.h"
#include "lockstep/launch/rendezvous/membership.h"
#include "lockstep/launch/workers/leftovers.h"

namespace lockstep::launch {

/// Returns the environment variables of a worker, with torchrun's names: RANK,
/// WORLD_SIZE, MASTER_ADDR and so on. They replace those that the options add.
/// The worker has `core_count` cores. `attempt` is the number of earlier
/// attempts.
std::map<std::string, std::string> worker_variables(
    const RunOptions& options, const Group& group, const Endpoint& master,
    int local_rank, int attempt, size_t core_count,
    const std::string& error_file);

/// A worker of this node.
struct Worker {
  int rank = 0;
  int local_rank = 0;
  WorkerStream out;
  WorkerStream err;
  ChildProcess process;
  std::string folder;  ///< folder of its log files
  ProcessEnd end{};
  std::optional<Moment> ended_at{};  ///< time at which the agent saw its end

  bool waits = false;    ///< it waits for the next attempt
  std::string hang{};    ///< how it hung, if it was ended because of that
  std::string stacks{};  ///< stacks of its threads at that time

  bool has_failed() const {
    return ended_at && (end.signal != 0 || end.exit_code != 0 || !end.is_known);
  }
};

/// The workers of this node. Starts them, watches them, and kills the processes
/// that they leave behind.
class WorkerTeam {
 public:
  enum class Targets {
    kAll,
    kAtWork,      ///< workers that are not waiting
    kWillNotWait  ///< kAtWork without those that promised to wait
  };

  WorkerTeam(const RunOptions& options, const std::vector<std::string>& command,
             const LogFiles& logs, const control::ControlBlock& block,
             Console& out, Console& err);

  /// Starts an attempt. Workers that wait get their ranks in it, and every
  /// other worker is replaced by a new process. Throws LaunchError or IoError.
  void begin(const Group& group, const Endpoint& master, int attempt);

  /// Returns the streams of all workers.
  std::vector<WorkerStream*> streams();
  std::vector<Worker>& workers() { return workers_; }
  const std::vector<Worker>& workers() const { return workers_; }
  /// Returns true if a worker is running and not waiting.
  bool is_at_work() const;
  bool is_alive() const;
  int count_waiting() const;
  /// Updates which workers have ended. Returns true if one has failed since the
  /// last call.
  bool note_ends();
  /// Updates which workers wait for the next attempt.
  void note_waits();
  const control::WorkerSlot& slot_of(const Worker& worker) const {
    return block_.slot(worker.local_rank);
  }
  /// Sends a signal to the process groups of workers. A stopped process is
  /// continued, because it could not act on the signal otherwise.
  void send(int signal, Targets targets = Targets::kAll) const;
  /// Kills all processes that ended workers have left behind.
  void kill_leftovers() const;
  /// Reaps such processes that have ended.
  void reap_leftovers() const { leftovers_.reap(); }

 private:
  Worker start(const Group& group, const Endpoint& master, int attempt,
               int local_rank);
  ChildOptions process_plan(
      const std::map<std::string, std::string>& variables) const;
  void assign_rank(const Group& group, int attempt, int local_rank) const;

  const RunOptions& options_;
  const std::vector<std::string>& command_;
  const LogFiles& logs_;
  const control::ControlBlock block_;
  Console& out_;
  Console& err_;
  // Members are destroyed in reverse order: the workers come first.
  Leftovers leftovers_;
  std::vector<Worker> workers_;
};

}  // namespace lockstep::launch
