#pragma once

#include <functional>
#include <string>

#include "lockstep/cli/embed/run_flags.h"
#include "lockstep/train/run/run_training.h"

namespace lockstep::cli {

/// Does what run_and_report() does, and also reports errors of LibTorch.
int run_with_torch(int argc, char** argv, const std::function<int()>& run);

/// Trains `task` as the command line says: in this process, in a process for
/// each device, which it starts, or as a rank that a launcher started.
/// The first line of output starts with `beginning`. If the run was
/// stopped or processes were started, throws CLI::RuntimeError with the exit
/// code.
void run_task(const RunFlags& flags, const std::string& beginning,
              training::Task& task);

}  // namespace lockstep::cli
