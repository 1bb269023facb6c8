#pragma once

#include <cstdint>
#include <optional>
#include <string>

#include "lockstep/checkpoint/info.h"
#include "lockstep/lm/models/language_model.h"

namespace lockstep::tasks {

/// A saved language model, described by the sizes of its weights.
struct SavedModel {
  /// The file or folder with the sizes, for messages.
  std::string source;
  models::LanguageModelSpec spec;
  /// Path of its tokenizer. Empty if Lockstep can't read one.
  std::string tokenizer;
};

/// Returns the language model at `path`: a Hugging Face folder, a checkpoint,
/// or a run's folder. Returns nothing if there is no language model. Throws
/// CheckpointError for a Hugging Face folder that can't be used.
std::optional<SavedModel> find_saved_model(const std::string& path);

/// Does the same for the model of a checkpoint.
std::optional<SavedModel> find_saved_model(const CheckpointInfo& info,
                                           const std::string& source);

/// Properties of a language model that a user chose.
struct ModelChoice {
  std::optional<std::string> name;  ///< one of models::language_names()
  std::optional<int64_t> context;
  std::optional<double> dropout;
  bool recomputes_activations = false;
};

/// Returns the model to train. Properties that are not chosen are those of
/// `saved`, from whose weights training starts, or else the defaults of the
/// named model.
///
/// Throws InvalidArgument for a choice that contradicts `saved`, naming both.
models::LanguageModelSpec choose_model(const ModelChoice& choice,
                                       const std::optional<SavedModel>& saved);

/// Describes `spec` in words, for a line of a log.
std::string in_words(const models::LanguageModelSpec& spec);

}  // namespace lockstep::tasks
