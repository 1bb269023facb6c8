#include "lockstep/checkpoint/checkpoint.h"

#include <algorithm>
#include <filesystem>
#include <optional>

#include <c10/util/accumulate.h>
#include <fmt/format.h>

#include "lockstep/base/error.h"
#include "lockstep/base/log.h"
#include "lockstep/checkpoint/folder.h"
#include "lockstep/checkpoint/manifest.h"
#include "lockstep/checkpoint/safetensors.h"
#include "lockstep/checkpoint/state_dict.h"
#include "lockstep/checkpoint/weights.h"
#include "lockstep/device/not_finite.h"
#include "lockstep/models/parameter_budget.h"
#include "lockstep/optim/torch_state.h"

namespace lockstep {
namespace {

namespace fs = std::filesystem;

using torch::Tensor;

void check_finite(const Manifest& manifest, const std::string& path,
                  const NamedTensors& tensors) {
  const auto& known = manifest.not_finite;
  for (const auto& [name, tensor] : tensors) {
    const std::string found = describe_not_finite(name, tensor);
    if (found.empty()) continue;
    if (std::find(known.begin(), known.end(), name) != known.end()) continue;
    refuse_damaged(fmt::format("{}: {}", path, found),
                   "finite numbers, as were saved");
  }
}

// Checks the digest of the parameters. The manifest also has checksums of the
// files, so this differs only if another program wrote the manifest, or if it
// was forged.
void check_digest(const std::string& checkpoint, const CheckpointInfo& info,
                  const NamedTensors& tensors) {
  const std::string found = parameter_digest(tensors);
  if (found == info.parameter_sha256) return;
  refuse_damaged(checkpoint + " has other parameters than its manifest says",
                 "parameter_sha256 " + info.parameter_sha256, found);
}

OptimizerState read_optimizer_state(const std::string& checkpoint,
                                    const Manifest& manifest) {
  OptimizerState state;
  for (const CheckpointFile& file : manifest.files) {
    if (!file.name.starts_with(kOptimizerFiles)) continue;
    const std::string path = checkpoint + "/" + file.name;
    const SafeTensors part = read_safetensors(path);
    check_finite(manifest, path, part.tensors);
    for (const auto& [name, tensor] : part.tensors) {
      if (state.emplace(name, tensor).second) continue;
      refuse_damaged(
          fmt::format("{}: '{}' is in another file, too", path, name));
    }
  }
  return state;
}

// Throws CheckpointError if another program saved weights in this folder.
void refuse_weights_only(const std::string& dir) {
  if (!has_weights(dir)) return refuse_distributed_checkpoint(dir);
  throw CheckpointError(
      {.code = ErrorCode::kCheckpointMissing,
       .what = dir + " has weights, but nothing says of which model",
       .expected =
           fmt::format("{}, or config.json of a language model", kManifestFile),
       .got = "neither",
       .fix =
           "copy config.json and the tokenizer of the model into the folder, "
           "or train it further: --init-from " +
           dir});
}

}  // namespace

bool has_checkpoint(const std::string& dir) {
  std::error_code ignored;
  return fs::exists(fs::path(dir) / kManifestFile, ignored) ||
         !list_checkpoints(dir).empty();
}

std::string find_checkpoint(const std::string& dir) {
  return open_checkpoint(dir).path();
}

CheckpointReader open_checkpoint(const std::string& dir) {
  std::error_code ignored;
  if (fs::exists(fs::path(dir) / kManifestFile, ignored)) {
    return CheckpointReader(dir);
  }
  if (!fs::is_directory(dir, ignored)) {
    throw CheckpointError({.code = ErrorCode::kCheckpointMissing,
                           .what = "there is no folder " + dir,
                           .fix = "name the --out-dir of a run, or one of its "
                                  "step-* folders"});
  }
  std::optional<CheckpointError> newest_error;
  for (const SavedCheckpoint& saved : list_checkpoints(dir)) {
    try {
      return CheckpointReader(saved.path);
    } catch (const CheckpointError& error) {
      if (!newest_error) newest_error = error;
      log_warning("checkpoint",
                  fmt::format("{} is skipped: {}", saved.path, text_of(error)));
    }
  }
  // The checkpoint is complete, but for another version of Lockstep.
  if (newest_error && newest_error->code() == ErrorCode::kCheckpointVersion) {
    throw *newest_error;
  }
  if (!newest_error) refuse_weights_only(dir);
  throw CheckpointError(
      {.code = ErrorCode::kCheckpointMissing,
       .what = "there is no complete checkpoint in " + dir,
       .expected = fmt::format("a folder step-* with {}, {} and {}",
                               kManifestFile, kModelFile, optimizer_file(0, 1)),
       .got = newest_error ? std::string(newest_error->text()) : "none"});
}

CheckpointReader::CheckpointReader(std::string path)
    : path_(std::move(path)),
      manifest_(std::make_shared<const Manifest>(read_manifest(path_))) {}

const CheckpointInfo& CheckpointReader::info() const { return manifest_->info; }

std::string CheckpointReader::model_file() const {
  const std::string path = path_ + "/" + kModelFile;
  if (manifest_->has(kModelFile)) return path;
  refuse_damaged(path + " is not of this checkpoint");
}

void CheckpointReader::within_budget(const std::function<void()>& build) const {
  const SafeTensorsHeader header = read_safetensors_header(model_file());
  int64_t elements = 0;
  for (const SafeTensorsEntry& entry : header.entries) {
    elements += c10::multiply_integers(entry.shape);
  }
  const auto tensors = static_cast<int64_t>(header.entries.size());
  const models::ParameterBudget budget(elements, tensors);
  try {
    build();
  } catch (const InvalidArgument& error) {
    std::string described;
    for (const auto& [name, value] : info().model) {
      described += fmt::format("{}{} {}", described.empty() ? "" : ", ", name,
                               value.substr(0, 40));
    }
    refuse_damaged(
        fmt::format("{} describes a model that is not in it ({})",
                    path_ + "/" + kManifestFile, error.text()),
        fmt::format("a model of at most {} numbers in {} tensors, as {} has",
                    elements, tensors, kModelFile),
        described);
  }
}

NamedTensors CheckpointReader::read_model(const NamedTensors& module) const {
  const std::string path = model_file();
  const SafeTensors state = read_safetensors(path);
  check_finite(*manifest_, path, state.tensors);
  check_digest(path_, info(), state.tensors);
  check_state_dict(module, state.tensors, path);
  return state.tensors;
}

void CheckpointReader::load(const NamedTensors& module) const {
  load_state_dict(module, read_model(module), model_file());
}

void SavedState::load(torch::optim::Optimizer& optimizer) const {
  optim::load_state_dict(optimizer, optimizer_state());
}

void CheckpointReader::load(const torch::nn::Module& model,
                            torch::optim::Optimizer* optimizer) const {
  const NamedTensors module = state_dict(model);
  // Nothing is changed unless both fit.
  const NamedTensors tensors = read_model(module);
  if (optimizer != nullptr) load(*optimizer);
  load_state_dict(module, tensors, model_file());
}

OptimizerState CheckpointReader::optimizer_state() const {
  return read_optimizer_state(path_, *manifest_);
}

OptimizerState CheckpointReader::random_state() const {
  if (!manifest_->has(kRandomFile)) return {};
  const SafeTensors state = read_safetensors(path_ + "/" + kRandomFile);
  return {state.tensors.begin(), state.tensors.end()};
}

CheckpointInfo read_checkpoint_info(const std::string& checkpoint) {
  return CheckpointReader(checkpoint).info();
}

void load_checkpoint(const std::string& checkpoint,
                     const torch::nn::Module& model,
                     torch::optim::Optimizer* optimizer) {
  CheckpointReader(checkpoint).load(model, optimizer);
}

}  // namespace lockstep
