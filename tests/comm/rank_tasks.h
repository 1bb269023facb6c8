#pragma once

#include <functional>
#include <string>
#include <vector>

#include "lockstep/comm/process_group.h"

namespace lockstep {

/// The work of a rank in a test. Reports errors by throwing.
using RankTask = std::function<void(const ProcessGroup&)>;

/// Tasks by name, so that ranks in other processes find them. Registers a task
/// when the program starts.
class RankTasks {
 public:
  RankTasks(const std::string& name, RankTask task);
  static const RankTask& get(const std::string& name);
};

/// Runs the task `name` as ranks in threads; throws what a rank threw.
void run_threads(const std::string& name, int ranks,
                 const ProcessGroupOptions& options);

/// Runs the task `name` as ranks in processes with torchrun's environment, and
/// returns what each threw: "" for one that ended well. One that is stopped is
/// killed when those before it have ended. Needs start_rank_server().
std::vector<std::string> run_processes(const std::string& name, int ranks,
                                       const ProcessGroupOptions& options);

/// Starts the process that forks ranks. main() calls it first, while the
/// process has one thread.
void start_rank_server();

void require(bool condition, const std::string& what);

}  // namespace lockstep
