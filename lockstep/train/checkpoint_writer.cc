#include "lockstep/train/checkpoint_writer.h"

#include <algorithm>
#include <cstring>
#include <filesystem>
#include <functional>
#include <optional>
#include <random>
#include <sys/resource.h>
#include <unistd.h>
#include <utility>

#include <fmt/format.h>
#include <nlohmann/json.hpp>

#include "lockstep/base/atomic_file.h"
#include "lockstep/base/cpu_set.h"
#include "lockstep/base/error.h"
#include "lockstep/base/log.h"
#include "lockstep/base/sha256.h"
#include "lockstep/base/stopwatch.h"
#include "lockstep/device/intra_op.h"
#include "lockstep/train/atomic_folder.h"
#include "lockstep/train/checkpoint_folder.h"
#include "lockstep/train/finite.h"
#include "lockstep/train/manifest.h"
#include "lockstep/train/safetensors.h"
#include "lockstep/train/state_dict.h"

namespace lockstep::train {
namespace {

namespace fs = std::filesystem;

using nlohmann::json;
using torch::Tensor;

// The ranks that see a file that rank 0 has just put in `dir`, as a world of
// their own: nothing is asked of file systems or names of hosts.
std::optional<World> world_of_writers(const std::string& dir,
                                      const World& world) {
  if (world.size() == 1) return World();
  const std::string probe =
      fmt::format("{}/.seen-by-{:08x}", dir, std::random_device{}());
  if (world.rank() == 0) {
    AtomicFile file(probe);
    file.commit();
  }
  const std::string path = world.all_gather_text(probe)[0];
  std::error_code ignored;
  const bool is_seen = fs::exists(path, ignored);
  std::vector<int> writers;
  const auto seen = world.all_gather_text(is_seen ? "yes" : "no");
  for (int rank = 0; rank < world.size(); ++rank) {
    if (seen[static_cast<size_t>(rank)] == "yes") writers.push_back(rank);
  }
  if (world.rank() == 0) fs::remove(path, ignored);
  return world.new_group(writers);
}

// The steps come first, and the slice's cores are theirs.
void step_aside() {
  constexpr int kNice = 10;
  ::setpriority(PRIO_PROCESS, static_cast<id_t>(::gettid()), kNice);
  try {
    pin_thread(allowed_cores());
  } catch (const IoError&) {
    // Where this is forbidden, writing is only slower.
  }
  set_intra_op_threads_of_this_thread(1);
}

// What a rank did, for the others.
std::string outcome_of(const std::function<json()>& act) {
  try {
    return act().dump();
  } catch (const std::exception& error) {
    return json{{"error", error.what()}}.dump(-1, ' ', false,
                                              json::error_handler_t::replace);
  }
}

// The others' outcomes, or what the first that failed says.
std::vector<json> agree(const World& world, const std::string& own) {
  std::vector<json> all;
  std::string error;
  for (const std::string& text : world.all_gather_text(own)) {
    all.push_back(json::parse(text));
    if (error.empty()) error = all.back().value("error", "");
  }
  if (!error.empty()) {
    throw CheckpointError(
        {.what = "a checkpoint was not written", .got = error});
  }
  return all;
}

// Of many tensors, by all threads at once.
class CopyPlan {
 public:
  void add(const Tensor& from, const Tensor& to) {
    if (!from.is_cpu() || !from.is_non_overlapping_and_dense()) {
      to.copy_(from);
      return;
    }
    constexpr size_t kPiece = size_t{1} << 20;
    bytes_ += from.nbytes();
    const auto* source = static_cast<const std::byte*>(from.const_data_ptr());
    auto* target = static_cast<std::byte*>(to.mutable_data_ptr());
    for (size_t at = 0; at < from.nbytes(); at += kPiece) {
      pieces_.push_back({.from = source + at,
                         .to = target + at,
                         .bytes = std::min(kPiece, from.nbytes() - at)});
    }
  }

  void run() const {
    const auto copy = [this](int64_t begin, int64_t end) {
      for (int64_t i = begin; i < end; ++i) {
        const Piece& piece = pieces_[static_cast<size_t>(i)];
        std::memcpy(piece.to, piece.from, piece.bytes);
      }
    };
    // A little is copied sooner than threads are woken.
    constexpr size_t kLittle = size_t{4} << 20;
    const auto count = static_cast<int64_t>(pieces_.size());
    bytes_ < kLittle ? copy(0, count) : intra_op_for(count, copy);
  }

 private:
  struct Piece {
    const std::byte* from;
    std::byte* to;
    size_t bytes;
  };
  std::vector<Piece> pieces_;
  size_t bytes_ = 0;
};

}  // namespace

// A file of this rank, before it is one.
struct CheckpointWriter::Part {
  std::string file;
  NamedTensors tensors;
  size_t parameters = 0;  ///< the first so many tensors are a model's
};

namespace {

// Writes a rank's parts, and says what they are.
json write_parts(const std::string& folder, const auto& parts) {
  json files = json::object();
  json not_finite = json::array();
  std::string parameter_sha256;
  for (const auto& part : parts) {
    for (size_t i = 0; i < part.tensors.size(); ++i) {
      const auto& [name, tensor] = part.tensors[i];
      const std::string found = describe_not_finite(name, tensor);
      if (found.empty()) continue;
      // Of what is saved for the next time, this would spoil all.
      if (i < part.parameters) {
        throw CheckpointError({.what = "a parameter is not finite: " + found});
      }
      not_finite.push_back(name);
    }
    Sha256 digest;
    const std::string path = folder + "/" + part.file;
    write_safetensors(path,
                      {.tensors = part.tensors, .metadata = {{"format", "pt"}}},
                      &digest);
    files[part.file] = {{"bytes", fs::file_size(path)},
                        {"sha256", digest.hex()}};
    if (part.file == kModelFile) {
      parameter_sha256 = parameter_digest(part.tensors);
    }
  }
  return {{"files", files},
          {"not_finite", not_finite},
          {"parameter_sha256", parameter_sha256}};
}

void add_to(Manifest& manifest, const json& rank) {
  for (const auto& [name, file] : rank.at("files").items()) {
    manifest.files.push_back({.name = name,
                              .bytes = file.at("bytes").get<uint64_t>(),
                              .sha256 = file.at("sha256").get<std::string>()});
  }
  for (const auto& name : rank.at("not_finite")) {
    manifest.not_finite.push_back(name.get<std::string>());
  }
  const auto digest = rank.at("parameter_sha256").get<std::string>();
  if (!digest.empty()) manifest.info.parameter_sha256 = digest;
}

}  // namespace

CheckpointWriter::CheckpointWriter(std::string dir, int keep,
                                   const World& world)
    : dir_(std::move(dir)), keep_(keep) {
  constexpr int kFewest = 2;
  if (keep_ < kFewest) {
    throw InvalidArgument(
        "checkpoint",
        {.what = "too few checkpoints are kept",
         .expected = fmt::format("at least {}: one may be damaged", kFewest),
         .got = fmt::format("{}", keep_)});
  }
  if (world.rank() == 0) {
    make_directories(dir_);
    sweep_unfinished_folders(dir_);
  }
  world_ = world_of_writers(dir_, world);
}

CheckpointWriter::~CheckpointWriter() = default;

std::vector<CheckpointWriter::Part> CheckpointWriter::own_parts(
    const CheckpointContent& content) const {
  const int ranks = world_->size();
  const int rank = world_->rank();
  std::vector<int64_t> load(static_cast<size_t>(ranks), 0);
  std::vector<Part> parts;
  const NamedTensors model = state_dict(content.model);
  for (const auto& [name, tensor] : model) {
    load[0] += static_cast<int64_t>(tensor.nbytes());
  }
  if (rank == 0) {
    parts.push_back({.file = kModelFile,
                     .tensors = model,
                     .parameters = content.model.parameters().size()});
    parts.push_back(
        {.file = kRandomFile,
         .tensors = {content.random.begin(), content.random.end()}});
  }
  Part optimizer{.file = optimizer_file(rank, ranks), .tensors = {}};
  for (const auto& [name, tensor] : content.optimizer.state_dict()) {
    const auto least = std::min_element(load.begin(), load.end());
    *least += static_cast<int64_t>(tensor.nbytes());
    if (least - load.begin() == rank) {
      optimizer.tensors.emplace_back(name, tensor);
    }
  }
  parts.push_back(std::move(optimizer));
  return parts;
}

// Copies the parts' tensors to memory of our own, of which there is one piece
// for each, used again for every checkpoint.
void CheckpointWriter::stage(std::vector<Part>& parts) {
  const torch::NoGradGuard no_grad;
  size_t at = 0;
  CopyPlan plan;
  for (Part& part : parts) {
    for (auto& [name, tensor] : part.tensors) {
      if (at == staging_.size()) staging_.emplace_back();
      Tensor& staged = staging_[at++];
      if (!staged.defined() || staged.sizes() != tensor.sizes() ||
          staged.strides() != tensor.strides() ||
          staged.scalar_type() != tensor.scalar_type()) {
        staged = torch::empty_strided(tensor.sizes(), tensor.strides(),
                                      tensor.options().device(torch::kCPU));
      }
      plan.add(tensor.detach(), staged);
      tensor = staged;
    }
  }
  plan.run();
}

void CheckpointWriter::save(const CheckpointContent& content) {
  if (!takes_part()) return;
  const Stopwatch watch;
  wait();
  std::vector<Part> parts = own_parts(content);
  costs_.bytes = 0;
  for (const Part& part : parts) {
    for (const auto& [name, tensor] : part.tensors) {
      costs_.bytes += static_cast<int64_t>(tensor.nbytes());
    }
  }
  stage(parts);
  pending_ = std::async(std::launch::async,
                        [this, info = content.info, parts = std::move(parts)] {
                          return write(info, parts);
                        });
  ++costs_.saved;
  costs_.stall_s += watch.seconds();
}

CheckpointWriter::Written CheckpointWriter::write(
    const CheckpointInfo& info, const std::vector<Part>& parts) {
  const Stopwatch watch;
  step_aside();
  const bool is_first = world_->rank() == 0;
  const std::string path = checkpoint_path(dir_, info.step);
  std::optional<AtomicFolder> folder;
  const auto begun = agree(*world_, outcome_of([&]() -> json {
    if (!is_first) return json::object();
    folder.emplace(path);
    return {{"folder", folder->temporary()}};
  }));
  const std::string building = begun[0].at("folder").get<std::string>();
  const auto written =
      agree(*world_, outcome_of([&] { return write_parts(building, parts); }));
  agree(*world_, outcome_of([&]() -> json {
    if (!is_first) return json::object();
    Manifest manifest{.info = info, .files = {}, .not_finite = {}};
    for (const json& rank : written) add_to(manifest, rank);
    AtomicFile file(building + "/" + kManifestFile);
    file.write(format_manifest(manifest));
    file.commit();
    folder->commit();
    prune_checkpoints(dir_, path, keep_);
    return json::object();
  }));
  return {.path = path, .seconds = watch.seconds()};
}

void CheckpointWriter::wait() {
  if (!pending_.valid()) return;
  try {
    const Written written = pending_.get();
    last_ = written.path;
    costs_.write_s += written.seconds;
    failure_.clear();
  } catch (const CheckpointError& error) {
    ++costs_.failed;
    failure_ = error.what();
    if (world_->rank() != 0) return;
    log_warning("checkpoint",
                fmt::format("{}; the run goes on, and {}", failure_,
                            last_.empty() ? "there is none before it"
                                          : "the last one is " + last_));
  }
}

void CheckpointWriter::finish() {
  if (!takes_part()) return;
  wait();
  if (failure_.empty()) return;
  throw CheckpointError(
      {.what = "the last checkpoint of the run was not written",
       .got = failure_,
       .fix = last_.empty() ? "" : "the last whole one is " + last_});
}

std::string save_checkpoint(const std::string& dir, const models::Model& model,
                            const optim::Optimizer& optimizer,
                            const CheckpointInfo& info, int keep) {
  if (info.step < 0) {
    throw InvalidArgument("checkpoint", {.what = "can't save a checkpoint",
                                         .expected = "a step of at least 0",
                                         .got = std::to_string(info.step)});
  }
  CheckpointWriter writer(dir, keep);
  writer.save({.info = info, .model = model, .optimizer = optimizer});
  writer.finish();
  return writer.last();
}

}  // namespace lockstep::train
