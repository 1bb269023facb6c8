#pragma once

#include <optional>
#include <unordered_map>
#include <vector>

#include <torch/types.h>

#include "lockstep/base/error.h"
#include "lockstep/parallel/reduction/owned_gradient.h"

namespace lockstep {

/// Gradients in .grad that the ranks have not summed yet: those of backward
/// passes and of train_step() under no_sync(). A wrapper has one
/// LocalGradients, which its steps and its Reducer share.
///
/// backward() adds the gradient of the mean over this rank's samples (a
/// *mean*), which gets this rank's weight when the ranks sum. train_step() adds
/// this rank's part of the gradient of the mean over the whole batch (a
/// *share*), which is summed without a weight. While only steps add gradients,
/// .grad holds shares. In all other cases it holds means, and a step multiplies
/// its shares by the number of ranks. A sum over the ranks that is already in
/// .grad then needs no special handling: all ranks have the same sum, so its
/// weighted mean is the sum itself.
///
/// Not thread-safe.
class LocalGradients {
 public:
  explicit LocalGradients(int ranks) : ranks_(ranks) {}

  /// Makes begin_backward() and add() do nothing during its lifetime, because
  /// what autograd adds to .grad then belongs to a step.
  class StepScope {
   public:
    explicit StepScope(LocalGradients& local) : local_(local) {
      local_.is_in_step_ = true;
    }
    ~StepScope() { local_.is_in_step_ = false; }
    StepScope(const StepScope&) = delete;
    StepScope& operator=(const StepScope&) = delete;

   private:
    LocalGradients& local_;
  };

  /// If false, gradients stay in this rank's .grad (no_sync()) until it is true
  /// again and a backward or a step runs.
  bool is_synced() const { return is_synced_; }
  void set_synced(bool on) { is_synced_ = on; }

  // Functions that add gradients under no_sync().

  /// Prepares .grad for a backward. Must be called before its first gradient.
  void begin_backward();
  /// Records that a backward added `incoming` to .grad of `parameter`.
  void add(const torch::Tensor& parameter, const torch::Tensor& incoming);
  /// Prepares .grad for a step, and returns the factor for the step's shares.
  double begin_step(const std::vector<torch::Tensor>& parameters);
  /// Records that the step added its shares.
  void end_step(const std::vector<torch::Tensor>& parameters);

  // Functions that sum the gradients over the ranks.

  /// Returns whether any .grad has a local part.
  bool has_any() const;
  /// Returns whether .grad of `parameter` has a local part.
  bool has(const torch::Tensor& parameter) const;
  /// Records that .grad of `parameter` was summed over the ranks.
  void clear(const torch::Tensor& parameter);
  /// Takes the local gradients out of .grad and adds this rank's share of them,
  /// times `factor`, to `sums`, one for each of `parameters`. `weight` is this
  /// rank's part of the batch that ends no_sync(). Throws ParallelError if the
  /// local gradients were made for another weight.
  void add_shares(const std::vector<torch::Tensor>& parameters, double weight,
                  double factor, std::vector<OwnedGradient>& sums);
  /// Prepares .grad for a backward that multiplies all of it by `weight` and
  /// sums it over the ranks. Returns a problem if that would be wrong.
  std::optional<Problem> begin_sum(double weight);

  /// Removes gradients that are already summed from .grad, so that the next sum
  /// adds only new ones. Returns one tensor for each of `parameters`, undefined
  /// where there was nothing to remove.
  std::vector<torch::Tensor> take_sums(
      const std::vector<torch::Tensor>& parameters);

 private:
  enum class Unit { kNone, kShares, kMeans };
  struct State {
    torch::Tensor parameter;
    bool is_local = false;
  };

  /// Starts over if the user cleared all local gradients.
  void forget_if_empty();
  State& state_of(const torch::Tensor& parameter);
  const State* find(const torch::Tensor& parameter) const;
  void multiply(double factor);
  /// Returns the factor that turns .grad into shares, for a rank whose means
  /// have the weight `weight`. Returns nothing if means and shares need
  /// different factors.
  std::optional<double> share_factor(double weight) const;
  static Problem uneven_problem();

  int ranks_;
  bool is_synced_ = true;
  bool is_in_step_ = false;
  Unit unit_ = Unit::kNone;
  bool has_backward_ = false;  // gradients of a backward are in .grad
  bool has_step_ = false;      // gradients of a step are in .grad
  std::unordered_map<const void*, State> states_;  // by TensorImpl
};

}  // namespace lockstep
