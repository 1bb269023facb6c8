#pragma once

#include "lockstep/train/train_options.h"
#include "lockstep/train/trainer.h"

namespace lockstep {

/// The body of main() for a program that trains a module of its own. The
/// program has the options of `lockstep train` that don't depend on the model,
/// the data or the optimizer (--strategy, --devices, --batch-size, --epochs,
/// --resume, ...), with the same checks and help. It runs under `lockstep run`,
/// torchrun, srun and mpirun as well as without a launcher. `defaults` are the
/// values of options that are not given; several ranks mean kDistributed
/// whatever its strategy is. Returns the exit code. Errors are printed to
/// stderr.
int train_main(int argc, char** argv, training::TrainerBase& trainer,
               const training::TrainOptions& defaults = {});

}  // namespace lockstep
