#include "lockstep/checkpoint/snapshot.h"

#include <algorithm>
#include <array>
#include <atomic>
#include <cstring>
#include <string_view>
#include <type_traits>
#include <utility>

#include <fmt/format.h>

#include "lockstep/base/checksum.h"
#include "lockstep/base/error.h"
#include "lockstep/base/log.h"
#include "lockstep/base/round_up.h"
#include "lockstep/base/stopwatch.h"
#include "lockstep/checkpoint/manifest.h"
#include "lockstep/checkpoint/random_state.h"
#include "lockstep/checkpoint/staging.h"
#include "lockstep/checkpoint/state_dict.h"
#include "lockstep/checkpoint/tensor_layout.h"
#include "lockstep/device/intra_op.h"

namespace lockstep {
namespace {

constexpr int kAttemptBits = 20;  // of a stamp; the others are 1 + the step

using torch::Tensor;

constexpr size_t kAlignment = 64;
constexpr uint64_t kMagic = 0x32746f687370616eULL;

// The kind of tensors in a part of a snapshot.
enum Kind : size_t { kModel, kOptimizer, kRandom, kKinds };
constexpr std::array<const char*, kKinds> kKindNames = {
    "tensor", "optimizer state", "random state"};

// A checksum, in hex.
using Digest = std::array<char, 32>;

struct Section {
  uint64_t at = 0;
  Digest layout{};  // digest of names, types and shapes
};

// Beginning of a snapshot. The manifest's text follows. At kPiecesAt there is a
// list of pieces, which is the same in all snapshots with the same tensors. The
// sums of the pieces follow, as each worker copied them, the layouts of the
// optimizer state as text, and then the tensors.
struct Header {
  uint64_t magic = kMagic;
  Digest identity{};  // digest of the run's name
  uint64_t info_bytes = 0;
  uint64_t pieces = 0;
  uint64_t layouts_bytes = 0;
  std::array<Section, kKinds> sections;
  Digest checksum{};  // of all but the sums and the tensors
};
constexpr size_t kPiecesAt = size_t{64} << 10;

// A part of a tensor that has a sum of its own.
struct Piece {
  uint64_t at = 0;
  uint64_t bytes = 0;
  std::array<char, 112> name{};  // "tensor 'fc.weight'", perhaps cut short
};

// All of their bytes are values, so bytes can be compared.
static_assert(std::has_unique_object_representations_v<Header> &&
              std::has_unique_object_representations_v<Piece>);

size_t aligned(size_t bytes) { return round_up(bytes, kAlignment); }

size_t sums_at(size_t pieces) { return kPiecesAt + pieces * sizeof(Piece); }

size_t layouts_at(size_t pieces) {
  return sums_at(pieces) + pieces * sizeof(uint64_t);
}

Digest as_digest(const std::string& hex) {
  Digest digest{};
  std::copy_n(hex.begin(), std::min(hex.size(), digest.size()), digest.begin());
  return digest;
}

Digest digest_of(const std::vector<TensorLayout>& layouts) {
  return as_digest(checksum_of(format_layouts(layouts)));
}

size_t bytes_of(const std::vector<TensorLayout>& layouts) {
  size_t bytes = 0;
  for (const TensorLayout& layout : layouts) bytes += aligned(layout.bytes());
  return bytes;
}

NamedTensors by_name(const OptimizerState& tensors) {
  return {tensors.begin(), tensors.end()};
}

// Returns the bytes of `slot` from `at` on as tensors of these layouts.
NamedTensors views(std::byte* slot, size_t at,
                   const std::vector<TensorLayout>& layouts) {
  NamedTensors result;
  for (const TensorLayout& layout : layouts) {
    result.emplace_back(layout.name, layout.view(slot + at));
    at += aligned(layout.bytes());
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

const char* info_of(std::span<const std::byte> bytes) {
  return reinterpret_cast<const char*>(bytes.data()) + sizeof(Header);
}

std::string_view layouts_text(std::span<const std::byte> bytes) {
  const Header& header = header_of(bytes);
  return {
      reinterpret_cast<const char*>(bytes.data()) + layouts_at(header.pieces),
      header.layouts_bytes};
}

// Returns the checksum that belongs into the header.
Digest checksum_of_head(std::span<const std::byte> bytes) {
  Header header = header_of(bytes);
  header.checksum = {};
  Checksum sum;
  sum.add(std::as_bytes(std::span(&header, 1)));
  sum.add(bytes.subspan(sizeof header, header.info_bytes));
  sum.add(bytes.subspan(kPiecesAt, header.pieces * sizeof(Piece)));
  sum.add(std::as_bytes(std::span(layouts_text(bytes))));
  return as_digest(sum.hex());
}

[[noreturn]] void refuse(const std::string& what,
                         const std::string& expected = "",
                         const std::string& got = "") {
  throw CheckpointError({.code = ErrorCode::kCheckpointDamaged,
                         .what = what,
                         .expected = expected,
                         .got = got});
}

void check_head(std::span<const std::byte> bytes) {
  const bool has_header =
      bytes.size() > kPiecesAt && header_of(bytes).magic == kMagic &&
      header_of(bytes).info_bytes <= kPiecesAt - sizeof(Header) &&
      header_of(bytes).pieces <=
          (bytes.size() - kPiecesAt) / (sizeof(Piece) + sizeof(uint64_t)) &&
      header_of(bytes).layouts_bytes <=
          bytes.size() - layouts_at(header_of(bytes).pieces);
  if (!has_header || checksum_of_head(bytes) != header_of(bytes).checksum) {
    refuse(
        "the description of a snapshot in memory has changed since it was "
        "saved");
  }
}

// Throws if a tensor has changed. The head is right.
void check_pieces(std::span<const std::byte> bytes, int64_t step) {
  const size_t count = header_of(bytes).pieces;
  const auto* pieces = reinterpret_cast<const Piece*>(bytes.data() + kPiecesAt);
  const auto* sums =
      reinterpret_cast<const uint64_t*>(bytes.data() + sums_at(count));
  const auto sum_of = [&](const Piece& piece) {
    return sum_of_bytes(bytes.subspan(piece.at, piece.bytes));
  };
  std::atomic<size_t> damaged = count;
  intra_op_for(static_cast<int64_t>(count), [&](int64_t begin, int64_t end) {
    for (auto i = static_cast<size_t>(begin); i < static_cast<size_t>(end);
         ++i) {
      if (sum_of(pieces[i]) != sums[i]) damaged = i;
    }
  });
  if (damaged == count) return;
  const Piece& piece = pieces[damaged];
  refuse(
      fmt::format("{} has changed in the snapshot of step {} in memory since "
                  "it was saved",
                  piece.name.data(), step),
      fmt::format("{:016x} as the sum of {} bytes", sums[damaged], piece.bytes),
      fmt::format("{:016x}", sum_of(piece)));
}

// Returns the section's tensors, which must have these layouts.
NamedTensors section(std::span<const std::byte> bytes, Kind kind,
                     const std::vector<TensorLayout>& layouts) {
  const Section& found = header_of(bytes).sections[kind];
  const size_t needed = bytes_of(layouts);
  if (found.layout != digest_of(layouts) || found.at > bytes.size() ||
      needed > bytes.size() - found.at) {
    throw CheckpointError(
        {.code = ErrorCode::kStateMismatch,
         .what = "the snapshot in memory is of another model or optimizer",
         .fix = "continue from a checkpoint: --snapshot-every 0"});
  }
  return views(const_cast<std::byte*>(bytes.data()), found.at, layouts);
}

}  // namespace

std::shared_ptr<const Snapshot> Snapshot::newest(
    const std::string& identity, const control::ControlBlock* block) {
  if (block == nullptr) return nullptr;
  auto memory = control::SnapshotMemory::find(*block);
  if (!memory) return nullptr;
  for (const auto& saved : memory->complete()) {
    try {
      std::shared_ptr<const Snapshot> found(new Snapshot(*memory, saved.bytes));
      if (header_of(saved.bytes).identity == as_digest(identity)) return found;
    } catch (const CheckpointError& error) {
      // The other workers of the node see the same, or find the snapshot gone.
      if (block->own_slot() != 0) continue;
      log_warning(
          "checkpoint",
          fmt::format("{}; the run continues from an earlier state. A bit "
                      "changed in the memory of this host: if that happens "
                      "again, replace it",
                      text_of(error)));
      memory->discard(saved);
    }
  }
  return nullptr;
}

Snapshot::Snapshot(control::SnapshotMemory memory,
                   std::span<const std::byte> bytes)
    : memory_(std::move(memory)), bytes_(bytes) {
  check_head(bytes);
  info_ = parse_manifest("the snapshot in memory",
                         {info_of(bytes), header_of(bytes).info_bytes})
              .info;
  check_pieces(bytes, info_.step);
}

void Snapshot::load(const NamedTensors& module) const {
  load_state_dict(module, section(bytes_, kModel, layouts_of(module)),
                  "the snapshot in memory");
}

OptimizerState Snapshot::optimizer_state() const {
  const auto tensors =
      section(bytes_, kOptimizer, parse_layouts(layouts_text(bytes_)));
  return {tensors.begin(), tensors.end()};
}

OptimizerState Snapshot::random_state() const {
  const auto tensors = section(
      bytes_, kRandom, layouts_of(host_generator(lockstep::random_state({}))));
  return {{tensors[0].first, tensors[0].second.clone()}};
}

// Places of the tensors. They are the same in the next snapshot, unless a
// callback has new state.
struct SnapshotWriter::Layout {
  std::array<std::vector<TensorLayout>, kKinds> tensors;
  std::array<Section, kKinds> sections;
  std::vector<Piece> pieces;  // in the order of a CopyPlan
  std::string optimizer_layouts;
  size_t bytes = 0;

  explicit Layout(const std::array<NamedTensors, kKinds>& all)
      : optimizer_layouts(format_layouts(layouts_of(all[kOptimizer]))) {
    size_t count = 0;
    for (const NamedTensors& some : all) {
      for (const auto& [name, tensor] : some) {
        count += CopyPlan::pieces_of(tensor);
      }
    }
    bytes = aligned(layouts_at(count) + optimizer_layouts.size());
    for (size_t kind = 0; kind < kKinds; ++kind) {
      tensors[kind] = layouts_of(all[kind]);
      sections[kind] = {.at = bytes, .layout = digest_of(tensors[kind])};
      for (const auto& [name, tensor] : all[kind]) {
        add_pieces(fmt::format("{} '{}'", kKindNames[kind], name), tensor);
        bytes += aligned(tensor.nbytes());
      }
    }
  }

  bool fits(const std::array<NamedTensors, kKinds>& all) const {
    for (size_t kind = 0; kind < kKinds; ++kind) {
      const bool is_same = std::equal(
          tensors[kind].begin(), tensors[kind].end(), all[kind].begin(),
          all[kind].end(), [](const auto& layout, const auto& tensor) {
            return layout.name == tensor.first &&
                   layout.type == tensor.second.scalar_type() &&
                   tensor.second.sizes() == layout.sizes;
          });
      if (!is_same) return false;
    }
    return true;
  }

  void add_pieces(const std::string& name, const Tensor& tensor) {
    for (size_t at = 0; at < tensor.nbytes(); at += CopyPlan::kPieceBytes) {
      Piece& piece = pieces.emplace_back();
      piece.at = bytes + at;
      piece.bytes = std::min(CopyPlan::kPieceBytes, tensor.nbytes() - at);
      std::copy_n(name.begin(), std::min(name.size(), piece.name.size() - 1),
                  piece.name.begin());
    }
  }
};

SnapshotWriter::SnapshotWriter(int64_t every, const std::string& identity,
                               const control::ControlBlock* block)
    : block_(block),
      every_(block != nullptr && block->header().may_wait.load() != 0 ? every
                                                                      : 0),
      identity_(identity) {}

SnapshotWriter::~SnapshotWriter() = default;

bool SnapshotWriter::is_due(int64_t step, bool is_last) const {
  return every_ > 0 && (is_last || step % every_ == 0);
}

void SnapshotWriter::save(const CheckpointContent& content) {
  const torch::NoGradGuard no_grad;
  const Stopwatch watch;
  const control::ControlBlock& block = *block_;
  const bool is_first = block.own_slot() == 0;
  std::array<NamedTensors, kKinds> tensors;
  tensors[kModel] = content.model;
  tensors[kOptimizer] = by_name(content.optimizer);
  tensors[kRandom] = host_generator(content.random);
  if (!layout_ || !layout_->fits(tensors)) {
    layout_ = std::make_unique<Layout>(tensors);
    memory_ = control::SnapshotMemory::make(block, layout_->bytes);
  }
  const std::span<std::byte> slot = memory_->begin();
  CopyPlan plan;
  for (size_t kind = 0; kind < kKinds; ++kind) {
    const auto targets =
        views(slot.data(), layout_->sections[kind].at, layout_->tensors[kind]);
    for (size_t i = 0; i < targets.size(); ++i) {
      plan.add(tensors[kind][i].second.detach(), targets[i].second);
    }
  }
  plan.keep_share(block.own_slot(), block.workers());
  const size_t pieces = layout_->pieces.size();
  plan.run_and_sum(
      {reinterpret_cast<uint64_t*>(slot.data() + sums_at(pieces)), pieces});
  if (is_first) {
    const std::string info =
        format_manifest({.info = content.info, .files = {}, .not_finite = {}});
    Header header{.identity = as_digest(identity_),
                  .info_bytes = info.size(),
                  .pieces = pieces,
                  .layouts_bytes = layout_->optimizer_layouts.size(),
                  .sections = layout_->sections};
    if (sizeof(Header) + info.size() > kPiecesAt) {
      throw CheckpointError({.code = ErrorCode::kCheckpointNotSaved,
                             .what = "the snapshot's description is too long",
                             .got = fmt::format("{} bytes", info.size()),
                             .fix = "train with --snapshot-every 0"});
    }
    std::memcpy(slot.data(), &header, sizeof header);
    std::memcpy(slot.data() + sizeof header, info.data(), info.size());
    std::memcpy(slot.data() + kPiecesAt, layout_->pieces.data(),
                pieces * sizeof(Piece));
    std::memcpy(slot.data() + layouts_at(pieces),
                layout_->optimizer_layouts.data(),
                layout_->optimizer_layouts.size());
    header.checksum = checksum_of_head(slot);
    std::memcpy(slot.data(), &header, sizeof header);
  }
  // Repeated steps belong to another attempt.
  const auto attempt =
      static_cast<uint64_t>(block.slot(block.own_slot()).assignment.attempt);
  memory_->end((static_cast<uint64_t>(content.info.step) + 1) << kAttemptBits |
               (attempt & ((1U << kAttemptBits) - 1)));
  ++costs_.taken;
  costs_.seconds += watch.seconds();
  costs_.bytes = static_cast<int64_t>(layout_->bytes);
}

void SnapshotWriter::discard(int64_t step) {
  if (!memory_) return;
  for (const auto& saved : memory_->complete()) {
    if (saved.stamp >> kAttemptBits == static_cast<uint64_t>(step) + 1) {
      memory_->discard(saved);
    }
  }
}

}  // namespace lockstep
