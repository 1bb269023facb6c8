#pragma once

#include <string>
#include <sys/types.h>
#include <vector>

// The program without the half second in which it loads LibTorch: a process
// that has loaded it forks a process for each run.
namespace lockstep::loaded_program {

/// Starts the process that start() asks. main() calls this first, while
/// the process has one thread.
void start_server();

/// Returns whether start() can run these arguments as bin/lockstep does:
/// they need LibTorch, and start_server() was called.
bool can_run(const std::vector<std::string>& arguments);

/// Runs the program in a new child of this process, with the environment and
/// the current folder of this process. Returns its process id. The libraries
/// have read their variables before, so a run with other variables must start
/// the program itself. Throws std::runtime_error.
pid_t start(const std::vector<std::string>& arguments, int out, int err);

}  // namespace lockstep::loaded_program
