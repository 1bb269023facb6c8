#pragma once

#include <optional>
#include <vector>

#include "lockstep/base/child_process.h"
#include "lockstep/base/stopwatch.h"
#include "lockstep/control/spare.h"
#include "lockstep/launch/output/console.h"
#include "lockstep/launch/output/worker_stream.h"
#include "lockstep/launch/workers/leftovers.h"

namespace lockstep::launch {

/// The agent's side of a spare worker: starts it, forks workers from it, and
/// starts another one if it ends. Without one, workers are started as usual.
class Spare {
 public:
  /// Starts it. `plan` is that of a worker. Its stdin, stdout and stderr are
  /// replaced. Throws LaunchError or IoError.
  Spare(ChildOptions plan, Leftovers& leftovers, Console& console);
  ~Spare() { stop(); }
  Spare(const Spare&) = delete;
  Spare& operator=(const Spare&) = delete;

  /// Waits until it is ready. Returns without that if it ends, if it takes
  /// long, or when `interrupt_fd` can be read.
  void wait_until_ready(int interrupt_fd);
  /// Starts another one if it has ended. Call this often.
  void look();
  /// Forks a worker. Returns nothing if no spare worker is ready.
  std::optional<ChildProcess> fork(const control::RankSetup& setup);

  std::vector<WorkerStream*> streams();

 private:
  struct Running {
    ChildProcess process;
    FileDescriptor socket;
    WorkerStream out;
    WorkerStream err;
    bool is_ready = false;
    Stopwatch age{};
  };

  void start();
  void stop();
  // Notices if it has ended, or doesn't get ready.
  void check();
  // Shows what the spare worker has printed so far.
  void pass_on_output();
  // Counts a spare worker that is of no use, and ends it.
  void lose(const std::string& why);
  bool is_ready();

  ChildOptions plan_;
  Leftovers& leftovers_;
  Console& console_;
  std::optional<Running> running_;
  int lost_ = 0;
};

}  // namespace lockstep::launch
