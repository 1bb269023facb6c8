#pragma once

#include <torch/types.h>

namespace lockstep {

/// A gradient that the engine may write to: dense, laid out like its
/// parameter, at the start of memory that no other tensor reads or writes.
///
/// Autograd promises less. A `.grad` may be a view of the gradient of another
/// parameter (x + (p.unsqueeze(0) + q.unsqueeze(0))), of the gradient of an
/// output, or of a tensor that the caller passed to backward(). A sum written
/// into such a gradient would change all of them. All code that sums, scales or
/// exchanges gradients therefore takes this type, which can be moved but not
/// copied.
class OwnedGradient {
 public:
  /// Makes an undefined gradient.
  OwnedGradient() = default;
  OwnedGradient(OwnedGradient&&) = default;
  OwnedGradient& operator=(OwnedGradient&&) = default;

  /// Takes over `gradient`, which autograd handed out for `parameter`. Keeps
  /// its memory if nothing else holds it and it is laid out like the parameter,
  /// and copies it otherwise. An undefined `gradient` gives an undefined
  /// result.
  ///
  /// Throws ParallelError for a sparse gradient.
  static OwnedGradient take(torch::Tensor gradient,
                            const torch::Tensor& parameter);
  /// Makes a gradient in `memory`, which the caller reserved for it: a part of
  /// a flat buffer, or of a segment that ranks share.
  static OwnedGradient in(torch::Tensor memory) {
    return OwnedGradient(std::move(memory));
  }

  bool defined() const { return tensor_.defined(); }
  /// The tensor, to be read, or written to by the engine.
  const torch::Tensor& tensor() const { return tensor_; }
  /// Releases the gradient, for example to become a `.grad`.
  torch::Tensor release() && { return std::move(tensor_); }

 private:
  explicit OwnedGradient(torch::Tensor tensor) : tensor_(std::move(tensor)) {}

  torch::Tensor tensor_;
};

/// Returns whether no tensors use the memory of .grad of `parameter` besides
/// .grad itself and `incoming`, which autograd added to it.
bool has_own_memory(const torch::Tensor& parameter,
                    const torch::Tensor& incoming);

/// Copies .grad of `parameter` if autograd stored `incoming` there and other
/// tensors use its memory.
void own_memory(const torch::Tensor& parameter, const torch::Tensor& incoming);

}  // namespace lockstep
