#pragma once

#include <cstdint>
#include <optional>
#include <string>

#include <CLI/CLI.hpp>

#include "lockstep/cli/embed/run_options.h"
#include "lockstep/cli/options.h"
#include "lockstep/tasks/images/train_images.h"
#include "lockstep/tasks/text/text_task.h"

namespace lockstep::cli {

/// Values of the command line of `lockstep train`.
struct TrainFlags {
  ModelFlags model;
  LanguageModelFlags language;
  DataFlags data;
  MemoryFormatFlags memory_format;
  RunFlags run;
  tasks::OptimizerOptions optimizer_options;
  std::string optimizer;  ///< empty: chosen by the model
  std::string schedule = "cosine";
  std::optional<double> lr;
  std::optional<double> momentum;
  std::optional<double> weight_decay;
  std::optional<double> beta2;
  std::optional<double> final_lr;
  bool no_augment = false;
};

void add_train_options(CLI::App& app, TrainFlags& flags);

/// Returns the language model that the run continues, or whose weights it
/// starts from. Throws CheckpointError if that can't be used.
std::optional<tasks::SavedModel> find_saved_model(const TrainFlags& flags);

/// Returns true if the run trains a language model: one that is named, or
/// `saved`.
bool trains_language_model(const TrainFlags& flags,
                           const std::optional<tasks::SavedModel>& saved);

/// Returns a run that trains an image classifier. Like to_text_run(), throws
/// BadUsage.
tasks::ImageRun to_image_run(const TrainFlags& flags);

/// A run that trains a language model.
struct TextRun {
  train::TrainOptions train;
  tasks::TextOptions text;
};
TextRun to_text_run(const TrainFlags& flags,
                    const std::optional<tasks::SavedModel>& saved);

}  // namespace lockstep::cli
