#pragma once

#include <cstdint>
#include <optional>
#include <string>

#include <CLI/CLI.hpp>

#include "lockstep/cli/embed/device_options.h"
#include "lockstep/cli/embed/ranks.h"
#include "lockstep/train/options.h"

namespace lockstep::cli {

/// What the command line says of how a task is trained, whatever the task.
struct RunFlags {
  DeviceFlags devices;
  train::TrainOptions options;  ///< the numbers are bound to it directly
  std::string strategy;         ///< empty: what suits the ranks and the devices
  std::string precision = "fp32";
  int zero = 0;  ///< the stage
  std::string grad_compression = "none";
  std::string on_spike = "nothing";
  std::string bad_links = "stage";
  std::string outer_optimizer = "nesterov";
  RankFlags ranks;
  bool is_verbose = false;
  std::optional<int64_t> epochs;
  bool no_eval = false;
  bool no_first_step_check = false;
  bool quiet = false;
  std::string report;
  const CLI::App* app = nullptr;  ///< whose options these are
};

/// Binds the options to `flags`, which must outlive the app.
void add_run_options(CLI::App& app, RunFlags& flags);

/// All but the devices, which take a while to find, and the strategy, which
/// depends on them. Throws BadUsage.
train::TrainOptions to_train_options(const RunFlags& flags);

}  // namespace lockstep::cli
