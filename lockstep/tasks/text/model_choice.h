#pragma once

#include <cstdint>
#include <optional>
#include <string>

#include "lockstep/checkpoint/info.h"
#include "lockstep/models/language/language_model_spec.h"

namespace lockstep::tasks {

/// A language model that was saved: the sizes that its weights have.
struct SavedModel {
  /// The file or folder that says them, for messages.
  std::string source;
  models::LanguageModelSpec spec;
  /// The path of its tokenizer. Empty if Lockstep can't read one.
  std::string tokenizer;
};

/// Returns what `path` says of its model: a folder of Hugging Face's, a
/// checkpoint, or a run's folder. Nothing if no language model is there.
/// Throws CheckpointError for a folder of Hugging Face's that can't be used.
std::optional<SavedModel> find_saved_model(const std::string& path);

/// Likewise for the model of a checkpoint.
std::optional<SavedModel> find_saved_model(const CheckpointInfo& info,
                                           const std::string& source);

/// The properties of a language model that a user chose.
struct ModelChoice {
  std::optional<std::string> name;  ///< one of models::language_names()
  std::optional<int64_t> context;
  std::optional<double> dropout;
  bool recomputes_activations = false;
};

/// Returns the model to train. What is not chosen is that of `saved`, whose
/// weights it begins with, or else the default of the named model.
///
/// Throws InvalidArgument naming both for a choice that contradicts `saved`.
models::LanguageModelSpec choose_model(const ModelChoice& choice,
                                       const std::optional<SavedModel>& saved);

/// Returns `spec` in words, for a line of a log.
std::string in_words(const models::LanguageModelSpec& spec);

}  // namespace lockstep::tasks
