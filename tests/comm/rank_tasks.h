#pragma once

#include <functional>
#include <string>
#include <vector>

#include "lockstep/comm/process_group.h"

namespace lockstep {

/// The work of a rank in a test. Reports errors by throwing.
using RankTask = std::function<void(const ProcessGroup&)>;

/// Tasks by name, for ranks that are processes of their own to find them.
/// Registers at the start of the program.
class RankTasks {
 public:
  RankTasks(const std::string& name, RankTask task);
  static const RankTask& get(const std::string& name);
};

/// Runs the task `name` as ranks in threads; throws what a rank threw.
void run_threads(const std::string& name, int ranks,
                 const ProcessGroupOptions& options);

/// Runs the task `name` as ranks in processes of this program under torchrun's
/// environment, and returns what each threw: "" for one that ended well. One
/// that is stopped is killed when those before it have ended.
std::vector<std::string> run_processes(const std::string& name, int ranks,
                                       const ProcessGroupOptions& options);

/// In such a process: does its task and returns the exit code.
int run_as_rank(const std::string& name);

void require(bool condition, const std::string& what);

}  // namespace lockstep
