#pragma once

#include <vector>

#include <torch/torch.h>

namespace lockstep::ddp {

/// Which part of the parameters' .grad is this rank's alone: gradients of
/// backward passes under no_sync(), which the ranks have not summed yet.
class LocalGradients {
 public:
  LocalGradients() = default;
  explicit LocalGradients(std::vector<torch::Tensor> parameters)
      : parameters_(std::move(parameters)),
        is_local_(parameters_.size()),
        is_mixed_(parameters_.size()) {}

  /// Whether .grad of parameter `p` has a local part.
  bool has(size_t p) const {
    return is_local_[p] && parameters_[p].grad().defined();
  }
  /// `incoming` was added to .grad of `p`, and is not to be exchanged now.
  void add(size_t p, const torch::Tensor& incoming);
  /// .grad of `p` was exchanged.
  void clear(size_t p) { is_local_[p] = false; }

  /// Before a local gradient is added to .grad of `p`, where ranks sum and do
  /// not average: notes whether .grad holds a sum over the ranks already.
  void note_mixture(size_t p);
  /// Before a pass whose sum is no average: takes what was exchanged before out
  /// of .grad, so that the pass sums only what is new. One tensor for each
  /// parameter, undefined where there was nothing to take.
  std::vector<torch::Tensor> take_sums();
  /// Parameters whose .grad has a local part and a sum over the ranks, which
  /// can't be told apart.
  std::vector<size_t> mixed() const;

  /// Whether no tensor but `incoming`, which was added to .grad of `p`, lies in
  /// the memory of .grad.
  bool has_own_memory(size_t p, const torch::Tensor& incoming) const;
  /// Gives `p` a .grad in memory of its own, if autograd took `incoming` for it
  /// and others hold that memory as well.
  void own_memory(size_t p, const torch::Tensor& incoming);

 private:
  std::vector<torch::Tensor> parameters_;
  std::vector<bool> is_local_;
  std::vector<bool> is_mixed_;
};

}  // namespace lockstep::ddp
