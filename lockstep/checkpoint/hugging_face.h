#pragma once

#include <memory>
#include <string>

#include "lockstep/checkpoint/state_dict.h"
#include "lockstep/models/language/language_model.h"

namespace lockstep {

/// A folder of Hugging Face's, config.json and model.safetensors (or its
/// shards with model.safetensors.index.json), of a GPT-2 or a Llama.

/// Returns the sizes in config.json. The head is tied if config.json says so,
/// unless the files have an `lm_head.weight` that differs from the table of the
/// tokens. The name is that of the folder; dropout is left at 0.
///
/// Throws CheckpointError for an architecture or an option that
/// models::LanguageModel has not, naming the field, and if the files are too
/// small for these sizes.
models::LanguageModelSpec read_hugging_face_config(const std::string& folder);

/// The model, on the CPU, in float32 whatever the file's types. Throws
/// CheckpointError for what is missing, unexpected or misshapen.
std::shared_ptr<models::LanguageModel> load_hugging_face(
    const std::string& folder);

/// Copies the weights into the state dict of a model of the same sizes. Throws
/// likewise, also if that model is tied and the files have a head of their own.
void load_hugging_face(const std::string& folder, const NamedTensors& model);

/// Whether `path` is such a folder.
bool is_hugging_face(const std::string& path);

/// Writes the folder, which transformers' from_pretrained() reads. It must not
/// exist, or be empty. Throws IoError and CheckpointError.
void save_hugging_face(const std::string& folder,
                       const models::LanguageModel& model);

}  // namespace lockstep
