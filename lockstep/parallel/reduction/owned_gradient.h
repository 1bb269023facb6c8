#pragma once

#include <torch/types.h>

namespace lockstep {

/// A gradient that the engine may write to: dense, laid out like its
/// parameter, at the start of memory that no other tensor reads or writes.
///
/// Autograd promises less. A `.grad` may be a view: of the gradient of another
/// parameter (x + (p.unsqueeze(0) + q.unsqueeze(0))), of the gradient of an
/// output, of a tensor that the caller passed to backward(). A sum written into
/// such a gradient would change all of them. All that sums, scales or exchanges
/// gradients therefore takes this type, which can be moved but not copied.
class OwnedGradient {
 public:
  /// No gradient.
  OwnedGradient() = default;
  OwnedGradient(OwnedGradient&&) = default;
  OwnedGradient& operator=(OwnedGradient&&) = default;

  /// Takes over `gradient`, which autograd handed out for `parameter`. Its
  /// memory is kept if nothing else holds it and it is laid out like the
  /// parameter, else it is copied. Undefined: no gradient.
  ///
  /// Throws ParallelError for a sparse gradient.
  static OwnedGradient take(torch::Tensor gradient,
                            const torch::Tensor& parameter);
  /// In `memory`, which the caller set apart for this gradient alone: a part
  /// of a flat buffer, or of a segment that ranks share.
  static OwnedGradient in(torch::Tensor memory) {
    return OwnedGradient(std::move(memory));
  }

  bool defined() const { return tensor_.defined(); }
  /// To read, or for the engine to write to.
  const torch::Tensor& tensor() const { return tensor_; }
  /// Hands the gradient out, to become a `.grad` say.
  torch::Tensor release() && { return std::move(tensor_); }

 private:
  explicit OwnedGradient(torch::Tensor tensor) : tensor_(std::move(tensor)) {}

  torch::Tensor tensor_;
};

/// Returns whether only .grad of `parameter`, and `incoming`, which autograd
/// added to it, use the memory of .grad.
bool has_own_memory(const torch::Tensor& parameter,
                    const torch::Tensor& incoming);

/// Copies .grad of `parameter` if autograd took `incoming` for it and other
/// tensors use that memory.
void own_memory(const torch::Tensor& parameter, const torch::Tensor& incoming);

}  // namespace lockstep
