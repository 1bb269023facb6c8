#pragma once

#include <cstdint>
#include <optional>
#include <string>

#include <CLI/CLI.hpp>

#include "lockstep/cli/options.h"
#include "lockstep/cli/ranks.h"
#include "lockstep/tasks/images/train_images.h"
#include "lockstep/train/options.h"

namespace lockstep::cli {

/// The command line of `lockstep train`.
struct TrainFlags {
  ModelFlags model;
  DataFlags data;
  DeviceFlags devices;
  MemoryFormatFlags memory_format;
  train::TrainOptions options;  ///< the numbers are bound to it directly
  tasks::OptimizerOptions optimizer_options;
  std::string strategy = "single";
  RankFlags ranks;
  bool is_verbose = false;
  std::string optimizer = "sgd";
  std::string schedule = "cosine";
  std::optional<double> lr;
  std::optional<double> momentum;
  std::optional<double> weight_decay;
  std::optional<int64_t> epochs;
  bool no_augment = false;
  bool no_eval = false;
  bool quiet = false;
  std::string report;
};

void add_train_options(CLI::App& app, TrainFlags& flags);

/// All but the devices, which take a while to find. Throws BadUsage.
tasks::ImageRun to_run(const TrainFlags& flags);

}  // namespace lockstep::cli
