#pragma once

#include <cstdint>

#include <torch/torch.h>

namespace lockstep::train {

/// How many rows of `logits` (N, classes) are greatest at their target (N).
/// The tensors are on one device.
inline int64_t count_correct(const torch::Tensor& logits,
                             const torch::Tensor& targets) {
  const torch::NoGradGuard no_grad;
  return logits.argmax(1).eq(targets).sum().item<int64_t>();
}

/// Loss and accuracy over the samples added so far.
class RunningMean {
 public:
  RunningMean() = default;
  /// Goes on from sums.
  RunningMean(double loss_sum, int64_t correct, int64_t samples)
      : loss_sum_(loss_sum), correct_(correct), samples_(samples) {}
  void add(double mean_loss, int64_t correct, int64_t samples) {
    loss_sum_ += mean_loss * static_cast<double>(samples);
    correct_ += correct;
    samples_ += samples;
  }
  /// 0 before the first sample.
  double loss() const { return samples_ == 0 ? 0 : loss_sum_ / count(); }
  double accuracy() const {
    return samples_ == 0 ? 0 : static_cast<double>(correct_) / count();
  }
  int64_t samples() const { return samples_; }
  int64_t correct() const { return correct_; }
  double loss_sum() const { return loss_sum_; }

 private:
  double count() const { return static_cast<double>(samples_); }

  double loss_sum_ = 0;
  int64_t correct_ = 0;
  int64_t samples_ = 0;
};

}  // namespace lockstep::train
