#include "lockstep/checkpoint/copy_plan.h"

#include <algorithm>
#include <cstring>

#include "lockstep/base/chunk.h"
#include "lockstep/device/intra_op.h"

namespace lockstep {
namespace {

template <class T>
void keep_part(std::vector<T>& all, int worker, int workers) {
  const ShardRange own =
      shards_of_worker(worker, workers, static_cast<int64_t>(all.size()));
  all = {all.begin() + own.first, all.begin() + own.last};
}

}  // namespace

void CopyPlan::add(const torch::Tensor& from, const torch::Tensor& to) {
  if (!from.is_cpu() || !from.is_non_overlapping_and_dense()) {
    whole_.emplace_back(from, to);
    return;
  }
  constexpr size_t kPiece = size_t{1} << 20;
  const auto* source = static_cast<const std::byte*>(from.const_data_ptr());
  auto* target = static_cast<std::byte*>(to.mutable_data_ptr());
  for (size_t at = 0; at < from.nbytes(); at += kPiece) {
    pieces_.push_back({.from = source + at,
                       .to = target + at,
                       .bytes = std::min(kPiece, from.nbytes() - at)});
  }
}

void CopyPlan::keep_share(int worker, int workers) {
  keep_part(pieces_, worker, workers);
  keep_part(whole_, worker, workers);
}

void CopyPlan::run() const {
  for (const auto& [from, to] : whole_) torch::Tensor(to).copy_(from);
  const auto copy = [this](int64_t begin, int64_t end) {
    for (int64_t i = begin; i < end; ++i) {
      const Piece& piece = pieces_[static_cast<size_t>(i)];
      std::memcpy(piece.to, piece.from, piece.bytes);
    }
  };
  size_t bytes = 0;
  for (const Piece& piece : pieces_) bytes += piece.bytes;
  // A little is copied sooner than threads are woken.
  constexpr size_t kLittle = size_t{4} << 20;
  const auto count = static_cast<int64_t>(pieces_.size());
  bytes < kLittle ? copy(0, count) : intra_op_for(count, copy);
}

}  // namespace lockstep
