#pragma once

#include <cstdint>
#include <memory>
#include <string>

#include "lockstep/checkpoint/state_dict.h"
#include "lockstep/lm/models/language_model.h"

namespace lockstep {

/// Folders in the format of Hugging Face: config.json and model.safetensors (or
/// its shards with model.safetensors.index.json) of a GPT-2 or a Llama.

/// Largest shard that transformers 5 writes by default.
inline constexpr uint64_t kMaxShardBytes = 50'000'000'000;

/// Returns the sizes in config.json. The head is tied if config.json says so,
/// unless the files have an `lm_head.weight` that differs from the table of the
/// tokens. The name is that of the folder, and dropout is 0.
///
/// Throws CheckpointError, naming the field, for an architecture or an option
/// that models::LanguageModel does not have. Also throws it if the files are
/// too small for these sizes.
models::LanguageModelSpec read_hugging_face_config(const std::string& folder);

/// Loads the model on the CPU, in float32 whatever the types in the file.
/// Throws CheckpointError for missing, unexpected or misshapen entries.
std::shared_ptr<models::LanguageModel> load_hugging_face(
    const std::string& folder);

/// Copies the weights into the state dict of a model of the same sizes. Throws
/// as above, and also if that model is tied and the files have a separate head.
void load_hugging_face(const std::string& folder, const NamedTensors& model);

/// Gives `tensors`, which were read from the files of the folder, the names of
/// models::LanguageModel's parameters, and removes masks and frequencies.
void adapt_hugging_face(const std::string& folder, NamedTensors& tensors);

/// Returns true if `path` is such a folder.
bool is_hugging_face(const std::string& path);

/// Writes a folder that transformers' from_pretrained() can read, and returns
/// the number of its safetensors files. The folder must be empty or not exist.
/// A file has at most `max_shard_bytes` of weights, unless one tensor is
/// larger. Throws IoError and CheckpointError.
size_t save_hugging_face(const std::string& folder,
                         const models::LanguageModel& model,
                         uint64_t max_shard_bytes = kMaxShardBytes);

}  // namespace lockstep
