#include "lockstep/checkpoint/staging.h"

#include <algorithm>
#include <array>
#include <cstring>
#include <numeric>
#if defined(__SSE2__)
#include <emmintrin.h>
#endif

#include "lockstep/base/chunk.h"
#include "lockstep/device/intra_op.h"
#include "lockstep/device/tensor_checksum.h"

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

// Copies `bytes` and returns their sum_of_bytes().
//
// A memcpy() and a second pass that sums would take half as long again. This
// loop takes no longer than memcpy(), because it stores past the caches, which
// therefore don't load the target first and keep the data of the next step.
uint64_t copy_and_sum(std::byte* to, const std::byte* from, size_t bytes) {
  size_t at = 0;
  uint64_t sum = 0;
#if defined(__SSE2__)
  constexpr size_t kLanes = 4;
  constexpr size_t kBlock = kLanes * sizeof(__m128i);
  if (reinterpret_cast<uintptr_t>(to) % sizeof(__m128i) == 0) {
    __m128i sums[kLanes] = {};
    for (; at + kBlock <= bytes; at += kBlock) {
      const auto* source = reinterpret_cast<const __m128i*>(from + at);
      auto* target = reinterpret_cast<__m128i*>(to + at);
      for (size_t i = 0; i < kLanes; ++i) {
        const __m128i words = _mm_loadu_si128(source + i);
        _mm_stream_si128(target + i, words);
        sums[i] = _mm_add_epi64(sums[i], words);
      }
    }
    // Other threads may read the copy once they see that it is complete.
    _mm_sfence();
    std::array<uint64_t, kBlock / sizeof(uint64_t)> words{};
    std::memcpy(words.data(), sums, kBlock);
    sum = std::accumulate(words.begin(), words.end(), uint64_t{0});
  }
#endif
  std::memcpy(to + at, from + at, bytes - at);
  return sum + sum_of_bytes({from + at, bytes - at});
}

}  // namespace

uint64_t sum_of_bytes(std::span<const std::byte> bytes) {
  return sum_of_words(torch::from_blob(const_cast<std::byte*>(bytes.data()),
                                       {static_cast<int64_t>(bytes.size())},
                                       torch::kByte));
}

size_t CopyPlan::pieces_of(const torch::Tensor& tensor) {
  return (tensor.nbytes() + kPieceBytes - 1) / kPieceBytes;
}

void CopyPlan::add(const torch::Tensor& from, const torch::Tensor& to) {
  const size_t first = count_;
  count_ += pieces_of(from);
  if (!from.is_cpu() || !from.is_non_overlapping_and_dense()) {
    whole_.push_back({.from = from, .to = to, .number = first});
    return;
  }
  const auto* source = static_cast<const std::byte*>(from.const_data_ptr());
  auto* target = static_cast<std::byte*>(to.mutable_data_ptr());
  for (size_t i = first; i < count_; ++i) {
    const size_t at = (i - first) * kPieceBytes;
    pieces_.push_back({.from = source + at,
                       .to = target + at,
                       .bytes = std::min(kPieceBytes, from.nbytes() - at),
                       .number = i});
  }
}

void CopyPlan::keep_share(int worker, int workers) {
  keep_part(pieces_, worker, workers);
  keep_part(whole_, worker, workers);
}

template <class CopyPiece>
void CopyPlan::run_pieces(const CopyPiece& copy_piece) const {
  const auto copy = [&](int64_t begin, int64_t end) {
    for (int64_t i = begin; i < end; ++i) {
      copy_piece(pieces_[static_cast<size_t>(i)]);
    }
  };
  size_t bytes = 0;
  for (const Piece& piece : pieces_) bytes += piece.bytes;
  // Copying little data takes less time than waking threads.
  constexpr size_t kLittle = size_t{4} << 20;
  const auto count = static_cast<int64_t>(pieces_.size());
  bytes < kLittle ? copy(0, count) : intra_op_for(count, copy);
}

void CopyPlan::run() const {
  for (const Whole& whole : whole_) torch::Tensor(whole.to).copy_(whole.from);
  run_pieces([](const Piece& piece) {
    std::memcpy(piece.to, piece.from, piece.bytes);
  });
}

void CopyPlan::run_and_sum(std::span<uint64_t> sums) const {
  for (const auto& [from, to, number] : whole_) {
    torch::Tensor(to).copy_(from);
    const std::span copied(static_cast<const std::byte*>(to.const_data_ptr()),
                           to.nbytes());
    for (size_t i = 0; i < pieces_of(to); ++i) {
      const size_t at = i * kPieceBytes;
      sums[number + i] = sum_of_bytes(
          copied.subspan(at, std::min(kPieceBytes, copied.size() - at)));
    }
  }
  run_pieces([&](const Piece& piece) {
    sums[piece.number] = copy_and_sum(piece.to, piece.from, piece.bytes);
  });
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
