#pragma once

#include <cstddef>
#include <cstdint>
#include <span>
#include <vector>

#include <torch/types.h>

namespace lockstep {

/// A plan to copy many tensors, in pieces for all intra-op threads of the
/// caller.
class CopyPlan {
 public:
  /// Size of a piece. The last piece of a tensor may be smaller.
  static constexpr size_t kPieceBytes = size_t{1} << 20;
  /// Returns the number of pieces of a tensor.
  static size_t pieces_of(const torch::Tensor& tensor);

  /// Both have the same sizes, strides and type. `to` is dense and on the host.
  void add(const torch::Tensor& from, const torch::Tensor& to);
  /// Keeps only the share that worker `worker` of `workers` has to copy.
  void keep_share(int worker, int workers);
  void run() const;
  /// Copies, and writes the sum_of_bytes() of each piece to `sums`, where the
  /// pieces have the order in which they were added. Pieces that keep_share()
  /// left out are skipped. The sum is that of the source if the source is dense
  /// and on the host, or else that of the copy.
  void run_and_sum(std::span<uint64_t> sums) const;

 private:
  struct Piece {
    const std::byte* from;
    std::byte* to;
    size_t bytes;
    size_t number;
  };
  /// A tensor that is not on the host, or not dense.
  struct Whole {
    torch::Tensor from;
    torch::Tensor to;
    size_t number;  // of its first piece
  };
  template <class CopyPiece>
  void run_pieces(const CopyPiece& copy_piece) const;

  std::vector<Piece> pieces_;
  std::vector<Whole> whole_;
  size_t count_ = 0;  // pieces that were added
};

/// Returns the sum of 64-bit words, as sum_of_words() does. It shows that a bit
/// changed.
uint64_t sum_of_bytes(std::span<const std::byte> bytes);

/// Host memory that tensors are copied to. It is reused for the next copies.
class Staging {
 public:
  /// Returns a copy of each tensor, of the same type and strides, made by all
  /// intra-op threads of the caller at once. The copies are valid until the
  /// next call.
  std::vector<torch::Tensor> copy(const std::vector<torch::Tensor>& tensors);

 private:
  std::vector<torch::Tensor> memory_;
};

}  // namespace lockstep
