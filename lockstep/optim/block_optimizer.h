#pragma once

#include <atomic>
#include <cstddef>
#include <cstdint>
#include <functional>
#include <map>
#include <memory>
#include <optional>
#include <string>
#include <typeinfo>
#include <utility>
#include <vector>

#include <torch/optim/optimizer.h>
#include <torch/types.h>

#include "lockstep/device/device.h"
#include "lockstep/optim/blocks.h"
#include "lockstep/optim/memory_watch.h"
#include "lockstep/optim/placement.h"
#include "lockstep/optim/slot.h"
#include "lockstep/optim/torch_state.h"
#include "lockstep/optim/update_rule.h"

namespace lockstep::optim {

/// Start of the momentum buffer of a parameter in SGD.
enum class FirstMomentum {
  kGradient,  ///< the first gradient, as in torch::optim
  /// Zeros, before the first step. Without dampening, this differs from
  /// kGradient only in the signs of zeros. Lockstep's own tasks use it, so that
  /// their runs keep the bits that they have always had.
  kZeros,
};

/// The update of a torch::optim::SGD, Adam or AdamW, cut into blocks. Several
/// threads can each do a part of it while the reduced gradient is still in
/// their cache, and several accelerators can each hold a part of its state.
///
/// It uses the parameter groups of the torch optimizer, their options at each
/// step, and its state. The state still belongs to the torch optimizer (to save
/// and load it, for example), but it is in memory from a StateFactory. The
/// torch optimizer must outlive this.
///
/// Parameters must be dense and of a floating type, and each must be listed
/// once (see unique()). State has the type and the layout of its parameter. The
/// blocks depend only on the parameters, so the bits of the update do not
/// depend on which thread or device updates which block.
class BlockOptimizer {
 public:
  /// Throws InvalidArgument for an optimizer of another type, and for
  /// parameters that are not as described above. A derived class counts as
  /// another type, because its step() may differ.
  explicit BlockOptimizer(
      torch::optim::Optimizer& optimizer, StateFactory make_state = {},
      Kernels kernels = Kernels::kFused,
      FirstMomentum first_momentum = FirstMomentum::kGradient);
  /// Same, but returns null where the constructor throws.
  static std::unique_ptr<BlockOptimizer> adopt(
      torch::optim::Optimizer& optimizer, const StateFactory& make_state);
  /// Returns whether the type of `optimizer` is one of the three.
  static bool serves(const torch::optim::Optimizer& optimizer);
  /// Throws InvalidArgument for an optimizer of another type.
  static void check_type(const torch::optim::Optimizer& optimizer);
  ~BlockOptimizer();
  BlockOptimizer(const BlockOptimizer&) = delete;
  BlockOptimizer& operator=(const BlockOptimizer&) = delete;

  /// Returns whether this was made for an optimizer at the same address. That
  /// optimizer may have been deleted.
  bool is_at(const torch::optim::Optimizer& optimizer) const {
    return &optimizer == &optimizer_;
  }
  /// Returns whether `optimizer` has the type and the parameters that this was
  /// made for, in the same groups.
  bool is_for(const torch::optim::Optimizer& optimizer) const;

  const std::vector<torch::Tensor>& parameters() const { return parameters_; }
  const std::vector<Block>& blocks() const { return placement_.blocks(); }

  // The state.

  /// Reads the options of the groups, and takes over state that was loaded or
  /// replaced. Allocates state that is missing, and is collective then if
  /// make_state is. Must be called before a step.
  void follow();
  /// Copies the state of the torch optimizer to separate memory of the
  /// parameters' devices, so that its own step() can be called, on each rank.
  /// The next follow() takes it back.
  void release_state();
  /// Divides the state equally between `devices`, which must be of the
  /// parameters' type. update() then computes on device_of(block). Parameters
  /// stay where they are. State that exists is moved. The torch optimizer has
  /// no tensors of divided state, so its own step(), and saving it, need
  /// release_state(). Call this before the first follow(), so that no device
  /// ever has all of the state. Throws InvalidArgument for parameters on the
  /// CPU, and for devices of another type.
  void partition_state(const std::vector<Device>& devices);
  /// Returns whether partition_state() has divided the state.
  bool is_partitioned() const { return placement_.is_divided(); }
  /// Returns the device on which update() computes the block. Blocks of
  /// different devices may be updated at the same time, and those of one device
  /// only by one thread if the state is divided.
  torch::Device device_of(int64_t block) const {
    return placement_.device_of(static_cast<size_t>(block));
  }
  /// Returns the state by name, as optim::state_dict() does. Divided state is
  /// copied to the memory of the host. There is no kHasMomentumBuffer with
  /// FirstMomentum::kZeros.
  NamedState state_dict() const;
  /// Loads the output of state_dict(). Throws CheckpointError if an entry is
  /// missing or has the wrong shape.
  void load_state_dict(const NamedState& state);
  /// Calls `visit` with the name of a slot, the index of a parameter and its
  /// state, for all state that is in one piece.
  void for_each_state(
      const std::function<void(const std::string& name, size_t p,
                               const torch::Tensor& state)>& visit) const;
  /// Returns what must be equal on all ranks besides parameters and state: the
  /// options, the step counts, and a hash of the state that was last loaded
  /// into memory that ranks share. They would otherwise mix what each of them
  /// has loaded.
  std::string common_text() const;
  /// Returns whether some of the state is in memory that ranks share.
  bool has_shared_state() const { return has_shared_state_; }

  // The update.

  /// Updates the parameters from their .grad, as step() of torch.optim does.
  /// Parameters without a gradient are not changed. Throws InvalidArgument for
  /// parameters or state that several ranks share.
  void step();
  /// Counts a step. Must be called before update(). Increments the version of
  /// the parameters that have a gradient, so backward through an earlier graph
  /// fails. Throws InvalidArgument if the device, type or layout of a parameter
  /// has changed.
  void begin_step(const std::vector<bool>& has_gradient);
  /// Updates block `block` with `gradient`, which is 1-d, has the block's
  /// length and is on the parameter's device. Different threads may update
  /// blocks at the same time.
  void update(int64_t block, const torch::Tensor& gradient);

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

 private:
  struct Layout {
    torch::TensorOptions options;
    std::vector<int64_t> sizes;
    std::vector<int64_t> strides;
  };
  static Layout layout_of(const torch::Tensor& tensor);

  /// Memory on a device that has a part of the state, for copies of a block. An
  /// update that runs out of memory would leave some blocks behind.
  struct Scratch {
    torch::Tensor parameter;
    torch::Tensor gradient;
  };

  void check_parameters() const;
  void check_layout(size_t p) const;
  void check_not_shared() const;
  void check_partition(const std::vector<Device>& devices) const;
  void refresh_views();

  /// Adds the slots that the options need and that don't exist.
  void add_slots();
  /// Moves the torch optimizer's state to the slots from `first_new` on, which
  /// are zeros, and whatever was replaced in the others.
  void take_state(size_t first_new);
  [[noreturn]] void refuse_lost_state(size_t p) const;
  /// Notes that `state`, which may be undefined, is loaded for parameter `p`,
  /// if ranks share the memory of that.
  void note_loaded(const Slot& slot, size_t p, const torch::Tensor& state);
  /// Counts the step of parameter `p`.
  void count_step(size_t p);
  /// Returns a line with the options of each group.
  std::string options_text() const;
  std::string steps_text() const;

  /// Makes scratch_ and step_copies_.
  void make_copies(const Placement& placement);
  /// Updates `parameter`, the block's elements or a copy of them, on the
  /// block's device.
  void update_block(size_t block, const torch::Tensor& parameter,
                    const torch::Tensor& gradient);

  /// Breaks the seals of blocks whose tensors were written to since the last
  /// step.
  void follow_writes();
  /// Returns the number of writes to a parameter and its state.
  int64_t version_of(size_t p) const;
  MemoryWatch::Print print_of_block(size_t block) const;

  torch::optim::Optimizer& optimizer_;
  const std::type_info& type_;  // of the torch optimizer
  const StateFactory make_state_;
  const FirstMomentum first_momentum_;
  const std::unique_ptr<UpdateRule> rule_;
  std::vector<torch::Tensor> parameters_;
  std::vector<size_t> group_of_;  // by parameter
  std::vector<Layout> layouts_;   // of the parameters and of their state

  Placement placement_;
  std::vector<Slot> slots_;
  bool has_shared_state_ = false;
  /// Hashes of the state that was last loaded, by slot and parameter.
  std::map<std::pair<std::string, size_t>, uint64_t> loaded_;

  // By parameter, if steps are counted. Tensors are what Adam's kernels take.
  std::vector<int64_t> steps_;
  std::vector<torch::Tensor> step_counts_;
  std::vector<bool> is_first_;  // by parameter: SGD, first step with momentum

  std::vector<Scratch> scratch_;                // by device of placement_
  std::vector<torch::Tensor> step_copies_;      // by block, if it is divided
  std::vector<torch::Tensor> parameter_views_;  // by block
  std::vector<const void*> data_;  // memory of the parameters in the views

  // For check_memory().
  const void* owner_ = nullptr;
  MemoryWatch memory_;
  std::vector<int64_t> versions_;          // by parameter
  std::vector<bool> parameter_is_shared_;  // by parameter, between ranks
  std::atomic<size_t> changed_ = 0;        // 1 + parameter; 0: none
};

}  // namespace lockstep::optim
