#pragma once

#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "lockstep/checkpoint/info.h"
#include "lockstep/device/device.h"
#include "lockstep/lm/models/language_model.h"
#include "lockstep/lm/task/text_data.h"
#include "lockstep/lm/text/tokenizer.h"
#include "lockstep/train/run_report.h"
#include "lockstep/train/train_options.h"

namespace lockstep::tasks {

/// Returns a checkpoint's description of a language model: its sizes and its
/// tokenizer. A small tokenizer is included. A large one is described by its
/// path and its SHA-256.
Settings describe(const models::LanguageModelSpec& spec, const TextData& data);

/// Returns true if a checkpoint has a language model.
bool is_of_text(const CheckpointInfo& info);

/// A saved language model, loaded on the CPU.
struct TextModel {
  std::string checkpoint;  ///< the folder that was loaded
  CheckpointInfo info;
  std::shared_ptr<models::LanguageModel> model;
  std::shared_ptr<const data::Tokenizer> tokenizer;
};

/// Loads a checkpoint, the newest one of a run's folder, or a Hugging Face
/// folder with a tokenizer. Throws what loading throws, and CheckpointError if
/// there is no language model.
TextModel load_text_model(const std::string& path);

/// Returns the text that the run of a checkpoint was trained on. Throws
/// CheckpointError if the checkpoint does not say.
TextSpec text_of(const CheckpointInfo& info);

struct TextEvalOptions {
  std::string checkpoint;
  TextSpec data;
  std::vector<Device> devices;
  int64_t batch_size = 64;  ///< windows
  int loader_workers = 1;
  training::Precision precision = training::Precision::kFloat32;
  /// Called before each batch with the number of batches done and of all.
  std::function<void(int64_t done, int64_t total)> on_batch{};
};

struct TextEvalReport {
  std::string checkpoint;
  CheckpointInfo info;
  training::TestReport test;
  int64_t tokens = 0;  ///< predicted tokens
  double seconds = 0;
};

/// Evaluates a checkpoint on the part of the text that was not trained on.
TextEvalReport evaluate_text(const TextEvalOptions& options);

}  // namespace lockstep::tasks
