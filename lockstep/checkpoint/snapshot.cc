#include "lockstep/checkpoint/snapshot.h"

#include <algorithm>
#include <array>
#include <cstring>
#include <utility>

#include <fmt/format.h>

#include "lockstep/base/checksum.h"
#include "lockstep/base/error.h"
#include "lockstep/base/round_up.h"
#include "lockstep/base/stopwatch.h"
#include "lockstep/checkpoint/manifest.h"
#include "lockstep/checkpoint/random_state.h"
#include "lockstep/checkpoint/staging.h"
#include "lockstep/checkpoint/state_dict.h"
#include "lockstep/control/worker_side.h"

namespace lockstep {
namespace {

using torch::Tensor;

constexpr size_t kAlignment = 64;
constexpr uint64_t kMagic = 0x31746f687370616eULL;

// The kind of tensors in a part of a snapshot.
enum Kind : size_t { kModel, kOptimizer, kRandom, kKinds };

// A checksum, in hex.
using Digest = std::array<char, 32>;

struct Section {
  uint64_t at = 0;
  Digest layout{};  // digest of names, types and shapes
};

// Beginning of a snapshot. The manifest's text follows, then the tensors.
struct Header {
  uint64_t magic = kMagic;
  Digest identity{};  // digest of the run's name
  uint64_t info_bytes = 0;
  std::array<Section, kKinds> sections;
};
constexpr size_t kTensorsAt = size_t{64} << 10;

size_t aligned(size_t bytes) { return round_up(bytes, kAlignment); }

Digest as_digest(const std::string& hex) {
  Digest digest{};
  std::copy_n(hex.begin(), std::min(hex.size(), digest.size()), digest.begin());
  return digest;
}

// Returns the strides of `tensor` when its bytes are in one piece.
std::vector<int64_t> dense_strides(const Tensor& tensor) {
  if (tensor.is_non_overlapping_and_dense()) return tensor.strides().vec();
  return c10::TensorType::contiguousStridesOf(tensor.sizes());
}

Digest layout_of(const NamedTensors& tensors) {
  std::string text;
  for (const auto& [name, tensor] : tensors) {
    text +=
        fmt::format("{} {} {} {}\n", name, c10::toString(tensor.scalar_type()),
                    c10::str(tensor.sizes()),
                    c10::str(torch::IntArrayRef(dense_strides(tensor))));
  }
  return as_digest(checksum_of(text));
}

size_t bytes_of(const NamedTensors& tensors) {
  size_t bytes = 0;
  for (const auto& [name, tensor] : tensors) bytes += aligned(tensor.nbytes());
  return bytes;
}

NamedTensors by_name(const OptimizerState& tensors) {
  return {tensors.begin(), tensors.end()};
}

// Returns the bytes of `slot` from `at` on as tensors like `like`.
NamedTensors views(std::byte* slot, size_t at, const NamedTensors& like) {
  NamedTensors result;
  for (const auto& [name, tensor] : like) {
    result.emplace_back(
        name, torch::from_blob(slot + at, tensor.sizes(), dense_strides(tensor),
                               tensor.options().device(torch::kCPU)));
    at += aligned(tensor.nbytes());
  }
  return result;
}

// Leaves out the generators of GPUs, which no shard gets its numbers from.
NamedTensors host_generator(const OptimizerState& states) {
  return {{"cpu", states.at("cpu")}};
}

const Header& header_of(std::span<const std::byte> bytes) {
  return *reinterpret_cast<const Header*>(bytes.data());
}

// Returns the section's tensors, which must have the layout of `like`.
NamedTensors section(std::span<const std::byte> bytes, Kind kind,
                     const NamedTensors& like) {
  const Section& found = header_of(bytes).sections[kind];
  const size_t needed = bytes_of(like);
  if (found.layout != layout_of(like) || found.at > bytes.size() ||
      needed > bytes.size() - found.at) {
    throw CheckpointError(
        {.code = ErrorCode::kStateMismatch,
         .what = "the snapshot in memory is of another model or optimizer",
         .fix = "continue from a checkpoint: --snapshot-every 0"});
  }
  return views(const_cast<std::byte*>(bytes.data()), found.at, like);
}

}  // namespace

std::shared_ptr<const Snapshot> Snapshot::newest(const std::string& identity) {
  if (control::control_block() == nullptr) return nullptr;
  auto memory = control::SnapshotMemory::find(*control::control_block());
  if (!memory) return nullptr;
  const auto saved = memory->newest();
  if (!saved) return nullptr;
  std::shared_ptr<const Snapshot> found(new Snapshot(*memory, saved->bytes));
  const bool is_ours = header_of(saved->bytes).identity == as_digest(identity);
  return is_ours ? found : nullptr;
}

Snapshot::Snapshot(control::SnapshotMemory memory,
                   std::span<const std::byte> bytes)
    : memory_(std::move(memory)), bytes_(bytes) {
  const bool has_header =
      bytes.size() > kTensorsAt && header_of(bytes).magic == kMagic &&
      header_of(bytes).info_bytes < kTensorsAt - sizeof(Header);
  if (!has_header) {
    throw CheckpointError({.code = ErrorCode::kCheckpointDamaged,
                           .what = "the memory for snapshots holds none"});
  }
  info_ = parse_manifest(
              "the snapshot in memory",
              {reinterpret_cast<const char*>(bytes.data()) + sizeof(Header),
               header_of(bytes).info_bytes})
              .info;
}

void Snapshot::load(const NamedTensors& module) const {
  load_state_dict(module, section(bytes_, kModel, module),
                  "the snapshot in memory");
}

OptimizerState Snapshot::optimizer_state(const OptimizerState& like) const {
  const auto tensors = section(bytes_, kOptimizer, by_name(like));
  return {tensors.begin(), tensors.end()};
}

OptimizerState Snapshot::random_state() const {
  const auto tensors =
      section(bytes_, kRandom, host_generator(lockstep::random_state({})));
  return {{tensors[0].first, tensors[0].second.clone()}};
}

// Places of the tensors, which are the same in every snapshot of a run.
struct SnapshotWriter::Layout {
  std::array<Section, kKinds> sections;
  size_t bytes = kTensorsAt;

  explicit Layout(const std::array<NamedTensors, kKinds>& tensors) {
    for (size_t kind = 0; kind < kKinds; ++kind) {
      sections[kind] = {.at = bytes, .layout = layout_of(tensors[kind])};
      bytes += bytes_of(tensors[kind]);
    }
  }
};

SnapshotWriter::SnapshotWriter(int64_t every, const std::string& identity)
    : every_(control::may_wait() ? every : 0), identity_(identity) {}

SnapshotWriter::~SnapshotWriter() = default;

bool SnapshotWriter::is_due(int64_t step, bool is_last) const {
  return every_ > 0 && (is_last || step % every_ == 0);
}

void SnapshotWriter::save(const CheckpointContent& content) {
  const torch::NoGradGuard no_grad;
  const Stopwatch watch;
  const control::ControlBlock& block = *control::control_block();
  const bool is_first = block.own_slot() == 0;
  std::array<NamedTensors, kKinds> tensors;
  tensors[kModel] = content.model;
  tensors[kOptimizer] = by_name(content.optimizer);
  tensors[kRandom] = host_generator(content.random);
  if (!memory_) {
    layout_ = std::make_unique<Layout>(tensors);
    memory_ = control::SnapshotMemory::make(block, layout_->bytes);
  }
  const std::span<std::byte> slot = memory_->begin();
  CopyPlan plan;
  for (size_t kind = 0; kind < kKinds; ++kind) {
    const auto targets =
        views(slot.data(), layout_->sections[kind].at, tensors[kind]);
    for (size_t i = 0; i < targets.size(); ++i) {
      plan.add(tensors[kind][i].second.detach(), targets[i].second);
    }
  }
  plan.keep_share(block.own_slot(), block.workers());
  plan.run();
  if (is_first) {
    const std::string info =
        format_manifest({.info = content.info, .files = {}, .not_finite = {}});
    const Header header{.identity = as_digest(identity_),
                        .info_bytes = info.size(),
                        .sections = layout_->sections};
    if (sizeof(Header) + info.size() > kTensorsAt) {
      throw CheckpointError({.code = ErrorCode::kCheckpointNotSaved,
                             .what = "the snapshot's description is too long",
                             .got = fmt::format("{} bytes", info.size()),
                             .fix = "train with --snapshot-every 0"});
    }
    std::memcpy(slot.data(), &header, sizeof header);
    std::memcpy(slot.data() + sizeof header, info.data(), info.size());
  }
  // Repeated steps belong to another attempt.
  constexpr int kAttemptBits = 20;
  const auto attempt =
      static_cast<uint64_t>(block.slot(block.own_slot()).assignment.attempt);
  memory_->end((static_cast<uint64_t>(content.info.step) + 1) << kAttemptBits |
               (attempt & ((1U << kAttemptBits) - 1)));
  ++costs_.taken;
  costs_.seconds += watch.seconds();
  costs_.bytes = static_cast<int64_t>(layout_->bytes);
}

}  // namespace lockstep
