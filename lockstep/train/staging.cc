#include "lockstep/train/staging.h"

#include <algorithm>
#include <cstddef>
#include <cstring>

#include "lockstep/device/intra_op.h"

namespace lockstep::train {
namespace {

using torch::Tensor;

// Of many tensors, cut in pieces for all threads.
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

bool is_like(const Tensor& one, const Tensor& other) {
  return one.defined() && one.sizes() == other.sizes() &&
         one.strides() == other.strides() &&
         one.scalar_type() == other.scalar_type();
}

}  // namespace

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

}  // namespace lockstep::train
