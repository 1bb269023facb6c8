#include "lockstep/checkpoint/writer.h"

#include <algorithm>
#include <filesystem>
#include <functional>
#include <optional>
#include <utility>

#include <fmt/format.h>

#include "lockstep/base/atomic_file.h"
#include "lockstep/base/atomic_folder.h"
#include "lockstep/base/checksum.h"
#include "lockstep/base/cores.h"
#include "lockstep/base/error.h"
#include "lockstep/base/log.h"
#include "lockstep/base/stopwatch.h"
#include "lockstep/checkpoint/folder.h"
#include "lockstep/checkpoint/manifest.h"
#include "lockstep/checkpoint/safetensors.h"
#include "lockstep/checkpoint/state_dict.h"
#include "lockstep/device/intra_op.h"
#include "lockstep/device/not_finite.h"
#include "lockstep/optim/torch_state.h"

namespace lockstep {
namespace {

namespace fs = std::filesystem;

using torch::Tensor;

// Returns a world of the ranks that see a file which rank 0 has just put in
// `dir`. This does not depend on file systems or host names.
std::optional<ProcessGroup> world_of_writers(const std::string& dir,
                                             const ProcessGroup& world) {
  if (world.size() == 1) return ProcessGroup();
  // Removed automatically, and swept later if we are killed.
  std::optional<AtomicFolder> probe;
  std::string path;
  if (world.rank() == 0) path = probe.emplace(dir + "/seen").temporary();
  path = world.all_gather_text(path)[0];
  std::error_code ignored;
  const bool is_seen = fs::exists(path, ignored);
  std::vector<int> writers;
  const auto seen = world.all_gather_text(is_seen ? "yes" : "no");
  for (int rank = 0; rank < world.size(); ++rank) {
    if (seen[static_cast<size_t>(rank)] == "yes") writers.push_back(rank);
  }
  return world.new_group(writers);
}

std::vector<std::string> check_finite(const CheckpointPart& part) {
  std::vector<std::string> not_finite;
  for (size_t i = 0; i < part.tensors.size(); ++i) {
    const auto& [name, tensor] = part.tensors[i];
    const std::string found = describe_not_finite(name, tensor);
    if (found.empty()) continue;
    // Earlier checkpoints are worth more than this one.
    if (i < part.parameters) {
      throw CheckpointError({.code = ErrorCode::kNotFinite,
                             .what = "a parameter is not finite: " + found});
    }
    not_finite.push_back(name);
  }
  return not_finite;
}

// Writes a rank's parts into `folder` and returns a manifest of these only.
// Throws CheckpointError if a parameter is not finite.
Manifest write_parts(const std::string& folder,
                     const std::vector<CheckpointPart>& parts) {
  Manifest written;
  for (const CheckpointPart& part : parts) {
    for (std::string& name : check_finite(part)) {
      written.not_finite.push_back(std::move(name));
    }
    Checksum checksum;
    const std::string path = folder + "/" + part.file;
    write_safetensors(path,
                      {.tensors = part.tensors, .metadata = {{"format", "pt"}}},
                      &checksum);
    written.files.push_back({.name = part.file,
                             .bytes = fs::file_size(path),
                             .xxh128 = checksum.hex()});
    if (part.file == kModelFile) {
      written.info.parameter_sha256 = parameter_digest(part.tensors);
    }
  }
  return written;
}

void add_to(Manifest& manifest, const Manifest& parts) {
  manifest.files.insert(manifest.files.end(), parts.files.begin(),
                        parts.files.end());
  manifest.not_finite.insert(manifest.not_finite.end(),
                             parts.not_finite.begin(), parts.not_finite.end());
  // Only the rank that wrote the model knows it.
  if (!parts.info.parameter_sha256.empty()) {
    manifest.info.parameter_sha256 = parts.info.parameter_sha256;
  }
}

// Thrown on all ranks if some rank could not do its part.
struct NotWritten {
  std::string reason;
};

// Does this rank's share of a common task, and returns the texts of all ranks.
// Throws NotWritten on all ranks if the task failed on one.
std::vector<std::string> together(const ProcessGroup& world,
                                  const std::function<std::string()>& act) {
  // The first byte says whether the rank succeeded.
  std::string own;
  try {
    own = "+" + act();
  } catch (const std::exception& error) {
    own = "-" + text_of(error);
  }
  auto all = world.all_gather_text(own);
  for (std::string& text : all) {
    if (text.front() == '-') throw NotWritten{text.substr(1)};
    text.erase(0, 1);
  }
  return all;
}

}  // namespace

CheckpointWriter::CheckpointWriter(std::string dir, int keep,
                                   const ProcessGroup& world)
    : dir_(std::move(dir)), keep_(keep) {
  constexpr int kMin = 2;
  if (keep_ < kMin) {
    throw InvalidArgument(
        "checkpoint",
        {.code = ErrorCode::kBadOption,
         .what = "too few checkpoints are kept",
         .expected = fmt::format("at least {}: one may be damaged", kMin),
         .got = fmt::format("{}", keep_)});
  }
  if (world.rank() == 0) {
    make_directories(dir_);
    sweep_unfinished_folders(dir_);
  }
  world_ = world_of_writers(dir_, world);
}

CheckpointWriter::~CheckpointWriter() = default;

std::vector<CheckpointPart> CheckpointWriter::own_parts(
    const CheckpointContent& content) const {
  const int ranks = world_->size();
  const int rank = world_->rank();
  std::vector<int64_t> load(static_cast<size_t>(ranks), 0);
  std::vector<CheckpointPart> parts;
  for (const auto& [name, tensor] : content.model) {
    load[0] += static_cast<int64_t>(tensor.nbytes());
  }
  if (rank == 0) {
    parts.push_back({.file = kModelFile,
                     .tensors = content.model,
                     .parameters = content.parameters});
    parts.push_back(
        {.file = kRandomFile,
         .tensors = {content.random.begin(), content.random.end()}});
  }
  CheckpointPart optimizer{.file = optimizer_file(rank, ranks), .tensors = {}};
  for (const auto& [name, tensor] : content.optimizer) {
    const auto least = std::min_element(load.begin(), load.end());
    *least += static_cast<int64_t>(tensor.nbytes());
    if (least - load.begin() == rank) {
      optimizer.tensors.emplace_back(name, tensor);
    }
  }
  parts.push_back(std::move(optimizer));
  return parts;
}

std::vector<CheckpointPart> CheckpointWriter::stage(
    std::vector<CheckpointPart> parts) {
  std::vector<Tensor> tensors;
  costs_.bytes = 0;
  for (const CheckpointPart& part : parts) {
    for (const auto& [name, tensor] : part.tensors) {
      tensors.push_back(tensor);
      costs_.bytes += static_cast<int64_t>(tensor.nbytes());
    }
  }
  const auto copies = staging_.copy(tensors);
  auto copy = copies.begin();
  for (CheckpointPart& part : parts) {
    for (auto& [name, tensor] : part.tensors) tensor = *copy++;
  }
  return parts;
}

void CheckpointWriter::save(const CheckpointContent& content) {
  if (!takes_part()) return;
  const Stopwatch watch;
  wait();
  std::vector<CheckpointPart> parts;
  try {
    parts = stage(own_parts(content));
  } catch (const std::exception& error) {
    // Otherwise, the other ranks would wait for our parts.
    world_->abort(text_of(error));
    throw;
  }
  pending_ = std::async(std::launch::async,
                        [this, info = content.info, parts = std::move(parts)] {
                          return write(info, parts);
                        });
  ++costs_.saved;
  costs_.stall_s += watch.seconds();
}

CheckpointWriter::Written CheckpointWriter::write(
    const CheckpointInfo& info, const std::vector<CheckpointPart>& parts) {
  try {
    return try_to_write(info, parts);
  } catch (const NotWritten& error) {
    if (world_->rank() == 0) {
      log_warning("checkpoint",
                  fmt::format("{} was not written: {}",
                              checkpoint_path(dir_, info.step), error.reason));
    }
    throw;
  }
}

CheckpointWriter::Written CheckpointWriter::try_to_write(
    const CheckpointInfo& info, const std::vector<CheckpointPart>& parts) {
  const Stopwatch watch;
  leave_slice();
  set_intra_op_threads_of_this_thread(1);
  const bool is_first = world_->rank() == 0;
  const std::string path = checkpoint_path(dir_, info.step);
  std::optional<AtomicFolder> folder;
  const std::string building = together(*world_, [&]() -> std::string {
    if (!is_first) return {};
    return folder.emplace(path).temporary();
  })[0];
  const auto written = together(
      *world_, [&] { return format_manifest(write_parts(building, parts)); });
  together(*world_, [&]() -> std::string {
    if (!is_first) return {};
    Manifest manifest{.info = info, .files = {}, .not_finite = {}};
    for (const auto& text : written) {
      add_to(manifest, parse_manifest("the parts of a rank", text));
    }
    AtomicFile file(building + "/" + kManifestFile);
    file.write(format_manifest(manifest));
    file.commit();
    folder->commit();
    return {};
  });
  if (is_first) prune(info.step);
  return {.path = path, .seconds = watch.seconds()};
}

void CheckpointWriter::prune(int64_t last) const {
  try {
    prune_checkpoints(dir_, last, keep_);
  } catch (const IoError& error) {
    log_warning("checkpoint",
                fmt::format("an old one can't be removed: {}", text_of(error)));
  }
}

void CheckpointWriter::wait() {
  if (!pending_.valid()) return;
  try {
    const Written written = pending_.get();
    last_ = written.path;
    costs_.write_s += written.seconds;
    failure_.clear();
  } catch (const NotWritten& error) {
    ++costs_.failed;
    failure_ = error.reason;
  }
}

void CheckpointWriter::finish() {
  if (!takes_part()) return;
  wait();
  if (failure_.empty()) return;
  throw CheckpointError(
      {.code = ErrorCode::kCheckpointNotSaved,
       .what = "the last checkpoint of the run was not written",
       .got = failure_,
       .fix = last_.empty() ? "" : "the last complete one is " + last_});
}

std::string save_checkpoint(const std::string& dir,
                            const torch::nn::Module& model,
                            const torch::optim::Optimizer& optimizer,
                            const CheckpointInfo& info, int keep) {
  if (info.step < 0) {
    throw InvalidArgument("checkpoint", {.code = ErrorCode::kCheckpointNotSaved,
                                         .what = "can't save a checkpoint",
                                         .expected = "a step of at least 0",
                                         .got = std::to_string(info.step)});
  }
  CheckpointWriter writer(dir, keep);
  writer.save({.info = info,
               .model = state_dict(model),
               .parameters = model.parameters().size(),
               .optimizer = optim::state_dict(optimizer)});
  writer.finish();
  return writer.last();
}

}  // namespace lockstep
