#pragma once

#include <string>
#include <vector>

#include "lockstep/launch/console.h"
#include "lockstep/launch/endpoint.h"
#include "lockstep/launch/guard.h"
#include "lockstep/launch/log_files.h"
#include "lockstep/launch/node.h"
#include "lockstep/launch/run_options.h"
#include "lockstep/launch/strays.h"
#include "lockstep/launch/worker.h"

namespace lockstep::launch {

/// This node's workers, from their start to the end of the last of what they
/// started.
class WorkerTeam {
 public:
  /// Starts all of them. Throws LaunchError or IoError, and none is left then.
  WorkerTeam(const RunOptions& options, const Group& group,
             const Endpoint& master, const std::vector<std::string>& command,
             int attempt, const LogFiles& logs, Console& out, Console& err);

  std::vector<Worker>& workers() { return workers_; }
  const std::vector<Worker>& workers() const { return workers_; }
  bool is_running() const;
  /// Notices who ended. Returns whether a worker failed.
  bool note_ends();
  /// To every worker and its group. A stopped one is continued: it could not
  /// act on the signal otherwise.
  void send(int signal) const;
  /// Kills what is left, wherever it hides.
  void end_leftovers() const;
  /// Takes notice of orphans that ended by themselves.
  void reap_orphans() const { strays_.reap(); }

 private:
  // The workers' destructors come first, the guard's last.
  Guard guard_;
  Strays strays_;
  std::vector<Worker> workers_;
};

}  // namespace lockstep::launch
