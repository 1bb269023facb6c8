#include "lockstep/train/checkpoint.h"

#include <algorithm>
#include <charconv>
#include <filesystem>
#include <map>
#include <optional>
#include <vector>

#include <fmt/format.h>

#include "lockstep/base/atomic_file.h"
#include "lockstep/base/error.h"
#include "lockstep/base/log.h"
#include "lockstep/train/atomic_folder.h"
#include "lockstep/train/manifest.h"
#include "lockstep/train/safetensors.h"
#include "lockstep/train/state_dict.h"

namespace lockstep::train {
namespace {

namespace fs = std::filesystem;

constexpr std::string_view kPrefix = "step-";

struct Saved {
  int64_t step;
  std::string path;
};

std::optional<int64_t> step_of(const std::string& name) {
  if (!name.starts_with(kPrefix)) return std::nullopt;
  const std::string digits = name.substr(kPrefix.size());
  int64_t step = 0;
  const auto [end, error] =
      std::from_chars(digits.data(), digits.data() + digits.size(), step);
  const bool is_number =
      error == std::errc() && step >= 0 && end == digits.data() + digits.size();
  return is_number ? std::optional(step) : std::nullopt;
}

// Newest first.
std::vector<Saved> list_checkpoints(const std::string& dir) {
  std::vector<Saved> saved;
  std::error_code ignored;
  for (const auto& entry : fs::directory_iterator(dir, ignored)) {
    const auto step = step_of(entry.path().filename().string());
    if (step && entry.is_directory(ignored)) {
      saved.push_back({.step = *step, .path = entry.path().string()});
    }
  }
  std::sort(saved.begin(), saved.end(),
            [](const Saved& a, const Saved& b) { return a.step > b.step; });
  return saved;
}

// A folder that an earlier run left may hold later steps than this one: what
// was saved just now stays, whatever its number.
void prune(const std::string& dir, const std::string& just_saved, int keep) {
  int kept = 1;
  for (const Saved& saved : list_checkpoints(dir)) {
    if (saved.path == just_saved) continue;
    if (++kept > keep) remove_folder(saved.path);
  }
}

}  // namespace

std::string save_checkpoint(const std::string& dir, const models::Model& model,
                            const optim::Optimizer& optimizer,
                            const CheckpointInfo& info, int keep) {
  if (keep < 1 || info.step < 0) {
    throw InvalidArgument(
        "checkpoint",
        {.what = "can't save a checkpoint",
         .expected = "a step of at least 0 and at least 1 checkpoint to keep",
         .got = fmt::format("step {}, keep {}", info.step, keep)});
  }
  make_directories(dir);
  sweep_unfinished_folders(dir);
  const std::string path =
      (fs::path(dir) / fmt::format("{}{:08}", kPrefix, info.step)).string();
  AtomicFolder folder(path);
  const std::string& building = folder.temporary();
  save(model, building + "/" + kModelFile);
  const auto state = optimizer.state_dict();
  write_safetensors(building + "/" + kOptimizerFile,
                    {.tensors = {state.begin(), state.end()},
                     .metadata = {{"format", "pt"}}});
  write_manifest(building, info);
  folder.commit();
  prune(dir, path, keep);
  return path;
}

std::string find_checkpoint(const std::string& dir) {
  std::error_code ignored;
  if (fs::exists(fs::path(dir) / kManifestFile, ignored)) {
    read_checkpoint_info(dir);
    return dir;
  }
  if (!fs::is_directory(dir, ignored)) {
    throw CheckpointError({.what = "there is no folder " + dir,
                           .fix = "name the --out-dir of a run, or one of its "
                                  "step-* folders"});
  }
  std::string reason;
  for (const Saved& saved : list_checkpoints(dir)) {
    try {
      read_checkpoint_info(saved.path);
      return saved.path;
    } catch (const CheckpointError& error) {
      if (reason.empty()) reason = error.what();
      log_warning("checkpoint",
                  fmt::format("{} is skipped: {}", saved.path, error.what()));
    }
  }
  throw CheckpointError(
      {.what = "there is no whole checkpoint in " + dir,
       .expected = fmt::format("a folder step-* with {}, {} and {}",
                               kManifestFile, kModelFile, kOptimizerFile),
       .got = reason.empty() ? "none" : reason});
}

CheckpointInfo read_checkpoint_info(const std::string& checkpoint) {
  return read_manifest(checkpoint);
}

void load_checkpoint(const std::string& checkpoint, models::Model& model,
                     optim::Optimizer* optimizer) {
  read_manifest(checkpoint);
  const std::string path = checkpoint + "/" + kModelFile;
  const SafeTensors parameters = read_safetensors(path);
  // Both fit, or neither is touched.
  check_state_dict(model, parameters.tensors, path);
  if (optimizer != nullptr) {
    const SafeTensors state =
        read_safetensors(checkpoint + "/" + kOptimizerFile);
    optimizer->load_state_dict({state.tensors.begin(), state.tensors.end()});
  }
  load_state_dict(model, parameters.tensors, path);
}

}  // namespace lockstep::train
