#pragma once

#include <cstdint>
#include <functional>
#include <map>
#include <memory>
#include <string>
#include <tuple>
#include <utility>
#include <vector>

#include <torch/arg.h>
#include <torch/types.h>

#include "lockstep/optim/block.h"

namespace lockstep::optim {

/// An optimizer with an update that is cut into blocks. Several threads can
/// each do a part of it while the reduced gradient is still in their cache.
///
/// It uses ATen's fused kernels. Parameters must be dense and of a floating
/// type, and each must be listed once (see unique()). State is allocated at
/// construction, on the device and in the layout of its parameter. The blocks
/// depend only on the parameters, so the bits of the update do not depend on
/// which thread updates which block.
class Optimizer {
 public:
  virtual ~Optimizer() = default;
  Optimizer(const Optimizer&) = delete;
  Optimizer& operator=(const Optimizer&) = delete;

  double lr() const { return lr_; }
  void set_lr(double lr) { lr_ = lr; }
  int64_t steps() const { return steps_; }

  /// Updates the parameters from their .grad, as step() of torch.optim does.
  /// Parameters without a gradient are not changed. Throws InvalidArgument for
  /// parameters or state that several ranks share.
  void step();
  /// Drops the gradients, as set_to_none=True does.
  void zero_grad();

  const std::vector<torch::Tensor>& parameters() const { return parameters_; }
  const std::vector<Block>& blocks() const { return blocks_; }
  /// Counts a step. Must be called before update(). Increments the version of
  /// the parameters that have a gradient, so backward through an earlier graph
  /// fails. Throws InvalidArgument if the device, type or layout of a parameter
  /// has changed.
  void begin_step(const std::vector<bool>& has_gradient);
  /// Updates block `block` with `gradient` (1-d, with the block's length).
  /// Different threads may update blocks at the same time.
  virtual void update(int64_t block, const torch::Tensor& gradient) = 0;

  /// Returns whether some of the state is in memory that ranks don't share.
  bool has_own_state() const { return has_own_state_; }
  /// Returns whether some of the state is in memory that ranks share.
  bool has_shared_state() const { return has_shared_state_; }
  virtual int64_t state_bytes() const;
  /// Returns the state by name: "momentum_buffer.<i>", "exp_avg.<i>", ...,
  /// "step.<i>".
  virtual std::map<std::string, torch::Tensor> state_dict() const;
  /// Loads the output of state_dict(). Throws CheckpointError if an entry is
  /// missing or has the wrong shape.
  virtual void load_state_dict(
      const std::map<std::string, torch::Tensor>& state);

 protected:
  Optimizer(std::vector<torch::Tensor> parameters, double lr);

  /// State tensors, one for each parameter and laid out like it, and a 1-d view
  /// of each of their blocks().
  struct Slot {
    std::vector<torch::Tensor> tensors;
    std::vector<torch::Tensor> views;
    bool is_made() const { return !tensors.empty(); }
  };
  /// Returns a slot of zeros.
  Slot make_slot(
      const std::function<torch::Tensor(const torch::Tensor&)>& make);
  /// Returns a step count of 0 for each parameter, as Adam's kernels take it.
  std::vector<torch::Tensor> zero_steps() const;
  /// Returns the tensors of the state by name, for state_dict().
  using NamedState =
      std::vector<std::pair<std::string, std::vector<torch::Tensor>>>;
  virtual NamedState named_state() const { return {}; }
  /// Copies "<name>.<i>" of `state` into each of `tensors`. Throws
  /// CheckpointError, and copies nothing, if one is missing or has another
  /// shape.
  static void load_tensors(const std::string& name,
                           const std::vector<torch::Tensor>& tensors,
                           const std::map<std::string, torch::Tensor>& state);
  virtual void count_step(const std::vector<bool>&) {}

  std::vector<torch::Tensor> parameters_;
  std::vector<Block> blocks_;
  std::vector<torch::Tensor> parameter_views_;  // one for each block
  double lr_;
  int64_t steps_ = 0;

 private:
  void check_no_duplicates() const;
  void refresh_views();
  void check_layout(size_t p) const;
  void check_not_shared() const;
  std::vector<torch::Tensor> block_views(
      const std::vector<torch::Tensor>& tensors) const;

  struct Layout {
    torch::TensorOptions options;
    std::vector<int64_t> sizes;
    std::vector<int64_t> strides;
  };
  static Layout layout_of(const torch::Tensor& tensor);

  std::vector<const void*> data_;  // memory of the parameters in the views
  std::vector<Layout> layouts_;    // of the parameters and of their state
  bool has_shared_state_ = false;
  bool has_own_state_ = false;
};

/// Returns each of `parameters` once, in the order of its first occurrence, as
/// Module.parameters() does in Python. LibTorch's parameters() lists a
/// parameter once for each of its names, and torch::optim then updates it that
/// many times in each step.
std::vector<torch::Tensor> unique(const std::vector<torch::Tensor>& parameters);

/// A function that makes zeros for the state of a parameter, with its layout.
using StateFactory = std::function<torch::Tensor(const torch::Tensor&)>;

/// SGD options. Names follow torch.optim.SGD.
struct SGDOptions {
  // NOLINTNEXTLINE(google-explicit-constructor)
  SGDOptions(double lr = 0.1) : lr_(lr) {}
  TORCH_ARG(double, lr);
  TORCH_ARG(double, momentum) = 0.0;
  TORCH_ARG(double, weight_decay) = 0.0;
  TORCH_ARG(bool, nesterov) = false;
  /// Default: zeros like the parameter.
  TORCH_ARG(StateFactory, make_state);
};

/// Creates an optimizer that works as torch.optim.SGD. Throws InvalidArgument
/// for values that torch.optim.SGD refuses.
std::unique_ptr<Optimizer> sgd(std::vector<torch::Tensor> parameters,
                               const SGDOptions& options);

/// AdamW options. Names follow torch.optim.AdamW.
struct AdamWOptions {
  using Betas = std::tuple<double, double>;
  // NOLINTNEXTLINE(google-explicit-constructor)
  AdamWOptions(double lr = 1e-3) : lr_(lr) {}
  TORCH_ARG(double, lr);
  TORCH_ARG(Betas, betas){0.9, 0.999};
  TORCH_ARG(double, eps) = 1e-8;
  TORCH_ARG(double, weight_decay) = 1e-2;
  /// Default: zeros like the parameter.
  TORCH_ARG(StateFactory, make_state);
};

/// Creates an optimizer that works as torch.optim.AdamW.
std::unique_ptr<Optimizer> adamw(std::vector<torch::Tensor> parameters,
                                 const AdamWOptions& options);

}  // namespace lockstep::optim
