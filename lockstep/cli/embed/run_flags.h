#pragma once

#include <cstddef>
#include <cstdint>
#include <optional>
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
  training::TrainOptions options;  ///< numbers are bound to it directly
  std::string strategy;            ///< empty: chosen by ranks and devices
  std::string precision = "fp32";
  int zero = 0;  ///< ZeRO stage
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
  const CLI::App* app = nullptr;  ///< app with these options
};

/// Returns flags in which the values that are not given are those of
/// `defaults`.
RunFlags flags_with(const training::TrainOptions& defaults);

/// Returns the strategy `name`, or if that is empty the one that uses all ranks
/// and `devices` devices.
training::Strategy choose_strategy(const std::string& name, bool has_ranks,
                                   size_t devices);

/// Binds the options to `flags`, which must outlive the app.
void add_run_options(CLI::App& app, RunFlags& flags);

/// Returns the options, except for the devices, which take a while to find, and
/// the strategy, which depends on them. Throws BadUsage.
training::TrainOptions to_train_options(const RunFlags& flags);

}  // namespace lockstep::cli
