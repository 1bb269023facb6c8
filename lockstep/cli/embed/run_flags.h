#pragma once

#include <string>

#include <CLI/CLI.hpp>

#include "lockstep/cli/embed/device_options.h"
#include "lockstep/cli/embed/ranks.h"
#include "lockstep/train/train_options.h"

namespace lockstep::cli {

/// Values of the command line options for training that are the same for every
/// task.
struct RunFlags {
  DeviceFlags devices;
  training::TrainOptions options;  ///< most options are bound to it directly
  RankFlags ranks;
  bool is_verbose = false;
  bool quiet = false;
  std::string report;
  const CLI::App* app = nullptr;  ///< app with these options
};

/// Returns true if the command line or its config file gives the option.
bool is_given(const CLI::App& app, const std::string& option);

/// Returns the strategy that uses all ranks and `devices` devices.
training::Strategy choose_strategy(bool has_ranks, size_t devices);

/// Binds the options to `flags`, which must outlive the app. The values that
/// `flags` has are the defaults.
void add_run_options(CLI::App& app, RunFlags& flags);

/// Returns the options, except for the devices, which take a while to find, and
/// a strategy that was not given, which depends on them.
training::TrainOptions to_train_options(const RunFlags& flags);

}  // namespace lockstep::cli
