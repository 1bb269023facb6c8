#pragma once

#include <string>

#include "lockstep/train/task.h"

namespace lockstep {

/// A program that trains `task`: the body of main(). It has the options of
/// `lockstep train` that don't depend on a task (--strategy, --devices,
/// --batch-size, --epochs, --resume, ...), the same checks and help, and runs
/// under `lockstep run`, torchrun, srun and mpirun as well as by itself.
/// `defaults` are the values of options that are not given. Returns the exit
/// code; errors are printed to stderr.
int train_main(int argc, char** argv, train::Task& task,
               const train::TrainOptions& defaults = {});

}  // namespace lockstep
