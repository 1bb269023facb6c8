#pragma once

#include <cstdint>
#include <optional>
#include <string>

#include <CLI/CLI.hpp>

#include "lockstep/cli/embed/run_options.h"
#include "lockstep/cli/options.h"
#include "lockstep/tasks/images/train_images.h"

namespace lockstep::cli {

/// The command line of `lockstep train`.
struct TrainFlags {
  ModelFlags model;
  DataFlags data;
  MemoryFormatFlags memory_format;
  RunFlags run;
  tasks::OptimizerOptions optimizer_options;
  std::string optimizer = "sgd";
  std::string schedule = "cosine";
  std::optional<double> lr;
  std::optional<double> momentum;
  std::optional<double> weight_decay;
  bool no_augment = false;
};

void add_train_options(CLI::App& app, TrainFlags& flags);

/// Throws BadUsage.
tasks::ImageRun to_run(const TrainFlags& flags);

}  // namespace lockstep::cli
