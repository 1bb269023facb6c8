#pragma once

#include <atomic>
#include <cstdint>
#include <deque>
#include <functional>
#include <map>
#include <memory>
#include <optional>
#include <string>
#include <tuple>
#include <utility>
#include <vector>

#include <torch/arg.h>
#include <torch/types.h>

#include "lockstep/device/device.h"
#include "lockstep/optim/block.h"
#include "lockstep/optim/memory_watch.h"
#include "lockstep/optim/placement.h"
#include "lockstep/optim/slot.h"

namespace lockstep::optim {

/// An optimizer with an update that is cut into blocks. Several threads can
/// each do a part of it while the reduced gradient is still in their cache, and
/// several accelerators can each hold a part of its state.
///
/// It uses ATen's fused kernels. Parameters must be dense and of a floating
/// type, and each must be listed once (see unique()). State has the layout of
/// its parameter. On the CPU it is allocated at construction, and on an
/// accelerator in the first step. The blocks depend only on the parameters, so
/// the bits of the update do not depend on which thread or device updates which
/// block.
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
  const std::vector<Block>& blocks() const { return placement_.blocks(); }
  /// Counts a step. Must be called before update(). Increments the version of
  /// the parameters that have a gradient, so backward through an earlier graph
  /// fails. Throws InvalidArgument if the device, type or layout of a parameter
  /// has changed.
  void begin_step(const std::vector<bool>& has_gradient);
  /// Updates block `block` with `gradient`, which is 1-d, has the block's
  /// length and is on the parameter's device. Different threads may update
  /// blocks at the same time.
  void update(int64_t block, const torch::Tensor& gradient);

  /// Divides the state equally between `devices`, which must be of the
  /// parameters' type. update() then computes on device_of(block). Parameters
  /// stay where they are. State that exists is moved, and other state is
  /// allocated. state_dict() returns copies in the memory of the host. Throws
  /// InvalidArgument for parameters on the CPU, and for devices of another
  /// type.
  ///
  /// train_step() of a DataParallel on accelerators calls this. An optimizer of
  /// LibTorch keeps its state on the parameters' device, because its own step()
  /// needs it there.
  virtual void partition_state(const std::vector<Device>& devices);
  /// Returns whether partition_state() has divided the state.
  bool is_partitioned() const { return placement_.is_divided(); }
  /// Returns the device on which update() computes the block. Blocks of
  /// different devices may be updated at the same time, and those of one device
  /// only by one thread if the state is divided.
  torch::Device device_of(int64_t block) const {
    return placement_.device_of(static_cast<size_t>(block));
  }

  /// Returns whether some of the state is in memory that ranks don't share.
  bool has_own_state() const { return has_own_state_; }
  /// Returns whether some of the state is in memory that ranks share.
  bool has_shared_state() const { return has_shared_state_; }
  /// Makes update() check that the memory of a block, its state and its
  /// parameter, is as the last update left it (MemoryWatch). For blocks that
  /// only this rank updates, so that no other rank has a copy to compare with.
  /// A program may write to a parameter that ranks don't share.
  /// `owner` decides which blocks those are; null: no checks. Writes that
  /// increment a tensor's version are allowed. Works on the CPU. `all`: all
  /// blocks in each step, and not in turns.
  void check_memory(const void* owner, bool all = false);
  /// Returns the index of the parameter of a block that check_memory() found
  /// changed.
  std::optional<size_t> changed_parameter() const;

  /// Returns a line with the options of each group.
  virtual std::string options_text() const;
  /// Returns what must be equal on all ranks besides parameters and state: the
  /// options, the step counts, and a hash of the state that was last loaded
  /// into memory that ranks share. They would otherwise mix what each of them
  /// has loaded. Leaves out step counts on an accelerator.
  std::string common_text() const;
  /// Calls `visit` with the name of a slot, the index of a parameter and its
  /// state, for all state that is allocated in one piece.
  void for_each_state(
      const std::function<void(const std::string& name, size_t p,
                               const torch::Tensor& state)>& visit) const;
  /// Returns the bytes of the state, even if it is not allocated yet.
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

  /// Adds a slot of zeros. state_dict() names its tensors "<name>.<i>". The
  /// result is valid as long as the optimizer. All state of a block must be in
  /// slots, because partition_state() moves nothing else. On an accelerator,
  /// `make` is called in the first step, and must return the parameter's type.
  Slot& add_slot(std::string name, StateFactory make);
  /// Returns the index of the block's parameter.
  size_t parameter_of(size_t block) const {
    return placement_.parameter_of(block);
  }
  /// Adds a step count of 0 for each parameter, as Adam's kernels take it.
  void add_step_counts();
  /// Returns the step count of the block's parameter, on device_of(block).
  torch::Tensor step_count_of(size_t block);
  /// Allocates the state and what update() needs. begin_step() calls it.
  void allocate_state();
  /// Updates `parameter` with `gradient`. Both are 1-d, have the elements of
  /// block `block`, and are on device_of(block), like its state.
  virtual void update_block(size_t block, const torch::Tensor& parameter,
                            const torch::Tensor& gradient) = 0;
  /// Returns entry `key` of `state`. Throws CheckpointError if it is missing or
  /// has another shape or type.
  static const torch::Tensor& checked_entry(
      const std::map<std::string, torch::Tensor>& state, const std::string& key,
      at::IntArrayRef sizes, at::ScalarType type);
  virtual void count_step(const std::vector<bool>&) {}
  /// Notes that `state`, which may be undefined, is loaded for parameter `p`,
  /// if ranks share the memory of that.
  void note_loaded(const Slot& slot, size_t p, const torch::Tensor& state);

  std::vector<torch::Tensor> parameters_;
  std::vector<torch::Tensor> step_counts_;  // by parameter, or empty
  double lr_;
  int64_t steps_ = 0;

 private:
  void check_no_duplicates() const;
  void refresh_views();
  void check_layout(size_t p) const;
  void check_not_shared() const;
  void check_partition(const std::vector<Device>& devices) const;
  void note_sharing(const Slot& slot);
  /// Breaks the seals of blocks whose tensors were written to since the last
  /// step.
  void follow_writes();
  /// Returns the number of writes to a parameter and its state.
  int64_t version_of(size_t p) const;
  std::string steps_text() const;
  MemoryWatch::Print print_of_block(size_t block) const;
  torch::Tensor whole_state(const Slot& slot, size_t p) const;
  /// Makes scratch_ and step_copies_.
  void allocate_copies();

  struct Layout {
    torch::TensorOptions options;
    std::vector<int64_t> sizes;
    std::vector<int64_t> strides;
  };
  static Layout layout_of(const torch::Tensor& tensor);

  /// Memory for copies of a block on a device that has a part of the state. An
  /// update that runs out of memory would leave some blocks behind.
  struct Scratch {
    torch::Tensor parameter;
    torch::Tensor gradient;
  };

  Placement placement_;
  std::deque<Slot> slots_;
  std::vector<Scratch> scratch_;                // by device of placement_
  std::vector<torch::Tensor> step_copies_;      // by block, if it is divided
  std::vector<torch::Tensor> parameter_views_;  // by block
  std::vector<const void*> data_;  // memory of the parameters in the views
  std::vector<Layout> layouts_;    // of the parameters and of their state
  bool has_shared_state_ = false;
  bool has_own_state_ = false;
  /// Hashes of the state that was last loaded, by slot and parameter.
  std::map<std::pair<std::string, size_t>, uint64_t> loaded_;
  // For check_memory().
  const void* owner_ = nullptr;
  MemoryWatch memory_;
  std::vector<int64_t> versions_;          // by parameter
  std::vector<bool> parameter_is_shared_;  // by parameter, between ranks
  std::atomic<size_t> changed_ = 0;        // 1 + parameter; 0: none
};

/// Returns each of `parameters` once, in the order of its first occurrence, as
/// Module.parameters() does in Python. LibTorch's parameters() lists a
/// parameter once for each of its names, and torch::optim then updates it that
/// many times in each step.
std::vector<torch::Tensor> unique(const std::vector<torch::Tensor>& parameters);

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
  using Filter = std::function<bool(const torch::Tensor&)>;
  // NOLINTNEXTLINE(google-explicit-constructor)
  AdamWOptions(double lr = 1e-3) : lr_(lr) {}
  TORCH_ARG(double, lr);
  TORCH_ARG(Betas, betas){0.9, 0.999};
  TORCH_ARG(double, eps) = 1e-8;
  TORCH_ARG(double, weight_decay) = 1e-2;
  /// Returns whether weight_decay applies to a parameter. Default: to all.
  TORCH_ARG(Filter, decays);
  /// Default: zeros like the parameter.
  TORCH_ARG(StateFactory, make_state);
};

/// Creates an optimizer that works as torch.optim.AdamW.
std::unique_ptr<Optimizer> adamw(std::vector<torch::Tensor> parameters,
                                 const AdamWOptions& options);

}  // namespace lockstep::optim
