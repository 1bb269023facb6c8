#pragma once

#include <cstdint>
#include <map>
#include <string>

#include "lockstep/checkpoint/safetensors.h"
#include "lockstep/checkpoint/state_dict.h"

namespace lockstep {

/// Folders with the weights of a model, in the layout of Hugging Face: one file
/// model.safetensors, or several files (shards) that are listed in
/// model.safetensors.index.json. A folder with both is read from
/// model.safetensors, as transformers does.

/// Returns true if `path` is such a folder.
bool has_weights(const std::string& path);

/// Reads such a folder, or one safetensors file. Both may be hostile. The index
/// must list exactly the tensors that are in the files, each with its file.
/// Throws CheckpointError, which names the file and the tensor.
NamedTensors read_weights(const std::string& path);

/// Returns the headers of a folder's files, by path. Throws as above.
std::map<std::string, SafeTensorsHeader> read_weight_headers(
    const std::string& folder);

/// Writes such a folder, which must be empty or not exist, and returns the
/// number of its safetensors files. A file has at most `max_shard_bytes` of
/// weights, unless one tensor is larger. The tensors are divided among the
/// files as transformers does it. The index is written last. Throws IoError and
/// CheckpointError.
size_t write_weights(const std::string& folder, const NamedTensors& tensors,
                     uint64_t max_shard_bytes);

/// Name of the weight of a language model's last layer, its head.
inline constexpr const char* kHeadName = "lm_head.weight";

/// Returns true if `name` is that of the table of the tokens of a GPT-2 or a
/// Llama.
bool is_token_table(const std::string& name);

/// Returns true if `tensors` has a head that equals the table of the tokens.
bool has_tied_head(const NamedTensors& tensors);

/// Removes the head from `tensors` if it equals the table of the tokens and
/// `model`, a state dict, has no separate head. The state dict of a tied model
/// in PyTorch has both.
void drop_tied_head(const NamedTensors& model, NamedTensors& tensors);

/// Throws CheckpointError, which says how to convert it, if `folder` was
/// written by torch.distributed.checkpoint in a format that Lockstep does not
/// read: pickled metadata, or parts of tensors.
void refuse_distributed_checkpoint(const std::string& folder);

}  // namespace lockstep
