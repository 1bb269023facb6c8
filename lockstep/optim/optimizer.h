#pragma once

#include <cstdint>
#include <functional>
#include <map>
#include <memory>
#include <string>
#include <vector>

#include <torch/types.h>

#include "lockstep/optim/blocks.h"

namespace lockstep::optim {

/// An optimizer whose update can be cut in blocks, so that many threads each
/// do a part of it while the reduced gradient is still in their cache.
///
/// Built on ATen's fused kernels. Parameters must be dense and of a floating
/// type, each listed once (see unique()). State is allocated at construction,
/// beside the parameter and in its layout. A block's extent depends on the
/// parameters alone, so the bits of the update do not depend on which thread
/// updates which block.
class Optimizer {
 public:
  virtual ~Optimizer() = default;
  Optimizer(const Optimizer&) = delete;
  Optimizer& operator=(const Optimizer&) = delete;

  double lr() const { return lr_; }
  void set_lr(double lr) { lr_ = lr; }
  int64_t steps() const { return steps_; }

  /// One update from the parameters' .grad, as torch.optim's step(). A
  /// parameter without a gradient is left alone. Throws InvalidArgument for
  /// parameters or state that several ranks share.
  void step();
  /// Drops the gradients (as set_to_none=True does).
  void zero_grad();

  const std::vector<torch::Tensor>& parameters() const { return parameters_; }
  const std::vector<Block>& blocks() const { return blocks_; }
  /// Counts a step, and a version, for the parameters that have a gradient;
  /// before update(). A graph made before can't be run backward any more.
  /// Throws InvalidArgument if a parameter changed its device, type or layout.
  void begin_step(const std::vector<bool>& has_gradient);
  /// Updates block `block` with `gradient` (1-d, the block's length). Blocks
  /// may be updated at the same time by different threads.
  virtual void update(int64_t block, const torch::Tensor& gradient) = 0;

  /// Whether its state is each rank's own, where parameters are shared.
  bool has_own_state() const { return has_own_state_; }
  /// Whether its state is in memory that ranks share.
  bool has_shared_state() const { return has_shared_state_; }
  virtual int64_t state_bytes() const = 0;
  /// The state by name: "momentum_buffer.<i>", "exp_avg.<i>", ..., "step.<i>".
  virtual std::map<std::string, torch::Tensor> state_dict() const = 0;
  /// Throws CheckpointError for missing or misshapen entries.
  virtual void load_state_dict(
      const std::map<std::string, torch::Tensor>& state) = 0;

 protected:
  Optimizer(std::vector<torch::Tensor> parameters, double lr);

  /// One 1-d view of `tensors`' memory for each of blocks(). The tensors are
  /// laid out as parameters() are.
  std::vector<torch::Tensor> block_views(
      const std::vector<torch::Tensor>& tensors) const;
  /// One tensor of zeros, laid out like it, for each parameter.
  std::vector<torch::Tensor> zeros_like_parameters(
      const std::function<torch::Tensor(const torch::Tensor&)>& make);
  virtual void count_step(const std::vector<bool>&) {}

  std::vector<torch::Tensor> parameters_;
  std::vector<Block> blocks_;
  std::vector<torch::Tensor> parameter_views_;  // for each block
  double lr_;
  int64_t steps_ = 0;

 private:
  void check_no_duplicates() const;
  void refresh_views();
  void check_layout(size_t p) const;
  void check_not_shared() const;

  struct Layout {
    torch::TensorOptions options;
    std::vector<int64_t> sizes;
    std::vector<int64_t> strides;
  };
  static Layout layout_of(const torch::Tensor& tensor);

  std::vector<const void*> data_;  // where the views point
  std::vector<Layout> layouts_;    // of the parameters, and of their state
  bool has_shared_state_ = false;  // with other ranks
  bool has_own_state_ = false;
};

/// Returns each of `parameters` once, in the order in which they come first, as
/// Module.parameters() does in Python. LibTorch's lists a parameter once for
/// each of its names, and torch::optim then updates it as often in each step.
std::vector<torch::Tensor> unique(const std::vector<torch::Tensor>& parameters);

/// Makes zeros for the state of a parameter, laid out like it.
using StateFactory = std::function<torch::Tensor(const torch::Tensor&)>;

/// Of SGD, named as in torch.optim.SGD.
struct SgdOptions {
  double lr = 0.1;
  double momentum = 0.0;
  double weight_decay = 0.0;
  bool nesterov = false;
  StateFactory make_state{};  ///< default: beside the parameter
};

/// torch.optim.SGD. Throws InvalidArgument for values that it would refuse.
std::unique_ptr<Optimizer> sgd(std::vector<torch::Tensor> parameters,
                               const SgdOptions& options);

/// Of AdamW, named as in torch.optim.AdamW.
struct AdamWOptions {
  double lr = 1e-3;
  double beta1 = 0.9;
  double beta2 = 0.999;
  double eps = 1e-8;
  double weight_decay = 1e-2;
  StateFactory make_state{};  ///< default: beside the parameter
};

/// torch.optim.AdamW.
std::unique_ptr<Optimizer> adamw(std::vector<torch::Tensor> parameters,
                                 const AdamWOptions& options);

}  // namespace lockstep::optim
