#include "lockstep/checkpoint/staging.h"

#include <algorithm>
#include <cstring>

#include "lockstep/base/chunk.h"
#include "lockstep/device/intra_op.h"

namespace lockstep {
namespace {

using torch::Tensor;

template <class T>
void keep_part(std::vector<T>& all, int worker, int workers) {
  const ShardRange own =
      shards_of_worker(worker, workers, static_cast<int64_t>(all.size()));
  all = {all.begin() + own.first, all.begin() + own.last};
}

bool is_like(const Tensor& one, const Tensor& other) {
  return one.defined() && one.sizes() == other.sizes() &&
         one.strides() == other.strides() &&
         one.scalar_type() == other.scalar_type();
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
  // Copying little data takes less time than waking threads.
  constexpr size_t kLittle = size_t{4} << 20;
  const auto count = static_cast<int64_t>(pieces_.size());
  bytes < kLittle ? copy(0, count) : intra_op_for(count, copy);
}

std::vector<Tensor> Staging::copy(const std::vector<Tensor>& tensors) {
  const torch::NoGradGuard no_grad;
  memory_.resize(tensors.size());
  CopyPlan plan;
  for (size_t i = 0; i < tensors.size(); ++i) {
    const Tensor& tensor = tensors[i];
    if (!is_like(memory_[i], tensor)) {
      memory_[i] = torch::empty_strided(tensor.sizes(), tensor.strides(),
                                        tensor.options().device(torch::kCPU));
    }
    plan.add(tensor.detach(), memory_[i]);
  }
  plan.run();
  return memory_;
}

}  // namespace lockstep
