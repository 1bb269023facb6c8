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

/// The command line of `lockstep train`.
struct TrainFlags {
  ModelFlags model;
  LanguageModelFlags language;
  DataFlags data;
  MemoryFormatFlags memory_format;
  RunFlags run;
  tasks::OptimizerOptions optimizer_options;
  std::string optimizer;  ///< empty: what suits the model
  std::string schedule = "cosine";
  std::optional<double> lr;
  std::optional<double> momentum;
  std::optional<double> weight_decay;
  std::optional<double> beta2;
  std::optional<double> final_lr;
  bool no_augment = false;
};

void add_train_options(CLI::App& app, TrainFlags& flags);

/// Returns the language model that the run goes on with or whose weights it
/// begins with. Throws CheckpointError if that can't be used.
std::optional<tasks::SavedModel> find_saved_model(const TrainFlags& flags);

/// Returns whether the run trains a language model: one that is named, or
/// `saved`.
bool trains_language_model(const TrainFlags& flags,
                           const std::optional<tasks::SavedModel>& saved);

/// A classifier of images. Throws BadUsage, as the other.
tasks::ImageRun to_image_run(const TrainFlags& flags);

/// A run that trains a language model.
struct TextRun {
  train::TrainOptions train;
  tasks::TextOptions text;
};
TextRun to_text_run(const TrainFlags& flags,
                    const std::optional<tasks::SavedModel>& saved);

}  // namespace lockstep::cli
