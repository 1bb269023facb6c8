#pragma once

#include <string>

#include "lockstep/train/run_report.h"

namespace lockstep::report {

/// Writes the scalars of `report` as a TensorBoard event file in `folder`,
/// which is created: "train/loss" of each step, "step_ms" of some steps, "lr"
/// and "epoch/..." of each epoch, "test/..." of each evaluation, and
/// "memory_mib/cpu:0" of each device. Returns the path of the file. Throws
/// IoError.
std::string write_tensorboard(const training::RunReport& report,
                              const std::string& folder);

}  // namespace lockstep::report
