#pragma once

#include <concepts>
#include <cstddef>
#include <cstdint>
#include <functional>
#include <memory>
#include <tuple>
#include <type_traits>
#include <utility>
#include <vector>

#include <torch/nn/module.h>
#include <torch/optim/optimizer.h>
#include <torch/script.h>
#include <torch/types.h>

#include "lockstep/comm/process_group.h"
#include "lockstep/device/device.h"
#include "lockstep/device/worker.h"
#include "lockstep/optim/optimizer.h"
#include "lockstep/parallel/ddp/ddp_options.h"
#include "lockstep/parallel/exchange/comm_hooks.h"
#include "lockstep/parallel/group/data_parallel_options.h"
#include "lockstep/parallel/module/invoke.h"
#include "lockstep/parallel/module/module_source.h"
#include "lockstep/parallel/module/replicate.h"  // IWYU pragma: export
#include "lockstep/parallel/module/wrap_arguments.h"

namespace lockstep {

class Engine;
namespace optim {
class FusedOptimizer;
}

/// Keeps gradients on their rank during its lifetime.
class NoSync {
 public:
  ~NoSync();
  NoSync(const NoSync&) = delete;
  NoSync& operator=(const NoSync&) = delete;

 private:
  friend class ParallelModuleBase;
  explicit NoSync(std::shared_ptr<Engine> engine);

  std::shared_ptr<Engine> engine_;
  bool was_synced_;
};

/// The parts of DataParallel and DistributedDataParallel that do not depend on
/// the module's type.
class ParallelModuleBase {
 public:
  /// Keeps gradients on this rank during the lifetime of the result. The
  /// gradients of a backward whose forward ran under it, and those of a
  /// train_step() without an optimizer, are added only to this rank's .grad.
  /// The next synced backward or train_step() sums all of them over the ranks.
  /// A program may use both. The gradients of a step are summed as they are,
  /// and those of a backward with this rank's weight in the call that sums. If
  /// GradientAverage::kSamples makes the two weights differ, as with an uneven
  /// last batch, that call throws ParallelError.
  [[nodiscard]] NoSync no_sync() { return NoSync(engine_); }

  /// Replaces the sum of gradients over the ranks. Must be called once, before
  /// the first step and before the optimizer is made. Each rank then updates
  /// all parameters.
  void register_comm_hook(const CommHook& hook);

  /// Runs `steps`, a loop of forward(), backward() and an optimizer's step().
  /// The number of steps may differ between ranks. Ranks that are done answer
  /// the others with zeros, and at the end take over the parameters of the
  /// ranks that made the most steps. The optimizer's state is not exchanged.
  void join(const std::function<void()>& steps,
            const JoinOptions& options = {});

  const std::vector<Device>& devices() const;
  int64_t shards() const;
  /// Returns the number of samples of a batch that each device of each rank
  /// gets.
  std::vector<int64_t> split(int64_t batch) const;
  /// Times of the last train_step(), or of the last forward() of DataParallel.
  PhaseTimes phase_times() const;
  const std::vector<std::unique_ptr<Worker>>& workers() const;
  /// Sets the number that keys the random streams of the next train_step().
  void set_step(int64_t step);

  /// Returns zeros for an optimizer's state, in shared memory if the ranks
  /// share memory. Collective with several ranks.
  torch::Tensor make_state(const torch::Tensor& parameter);
  /// Returns an optimizer's state tensor with the elements of all ranks, to be
  /// saved: `state` itself, or a copy if each rank has a part of it
  /// (ZeroStage). Collective with several ranks.
  torch::Tensor whole_state(const torch::Tensor& state);
  /// Bytes of gradients that had to be copied for other ranks. Not charged to
  /// any device.
  int64_t copy_bytes() const;
  /// Copies rank 0's buffers to this rank, as they were after the last step, as
  /// the next forward would do. Buffers loaded since then are kept.
  void load_buffers();
  /// Makes the next step prove once more that it computes what the module does
  /// (Verify::kDoubling), as the Trainer does at the beginning of an epoch.
  /// With several ranks, each has to call it.
  void verify_next_step();
  /// Recreates the replicas from the current state of the module. With several
  /// ranks, each has to call it.
  void rebuild();
  /// With several ranks on one host: shares the parameters now instead of at
  /// the first train_step() with an optimizer. Collective.
  void share_parameters();
  /// With several ranks on one host, which share the parameters while
  /// train_step() gets an optimizer: gives this rank its own copy of the
  /// parameters, which can then be changed by hand. The next step checks that
  /// they are equal on all ranks and shares them again.
  void unshare_parameters();

 protected:
  using Values = std::vector<c10::IValue>;

  /// For DataParallel.
  ParallelModuleBase(ModuleSource module, std::vector<Device> devices,
                     DataParallelOptions options);
  /// For DistributedDataParallel.
  ParallelModuleBase(ModuleSource module, const ProcessGroup& process_group,
                     const DistributedDataParallelOptions& options);

  /// Runs the replicas of DataParallel on the scattered inputs.
  c10::IValue forward_replicas(const Values& inputs);
  /// Runs `forward` of DistributedDataParallel. A backward through its output
  /// is summed over the ranks.
  c10::IValue forward_synced(const Values& inputs,
                             const std::function<c10::IValue()>& forward);
  // The steps of ParallelModule::train_step(), without types.
  StepResult train_step(const Values& inputs, const c10::IValue& target,
                        const ShardLoss& loss, optim::Optimizer& optimizer,
                        const TrainStepOptions& options = {});
  StepResult train_step(const Values& inputs, const c10::IValue& target,
                        const ShardLoss& loss,
                        torch::optim::Optimizer& optimizer,
                        const TrainStepOptions& options = {});
  StepResult train_step(const Values& inputs, const c10::IValue& target,
                        const ShardLoss& loss,
                        const TrainStepOptions& options = {});
  const Device& gathering_device() const;
  std::vector<std::vector<size_t>> gradient_buckets() const;

 private:
  friend class optim::FusedOptimizer;

  std::shared_ptr<Engine> engine_;
};

/// Adds what depends on the module's type `M`. Like PyTorch's wrappers, it is a
/// module with one submodule, "module": it can be saved, loaded, printed and
/// registered, and the names of its parameters begin with "module.".
template <class M>
class ParallelModule : public torch::nn::Module, public ParallelModuleBase {
  static_assert(!std::derived_from<M, ParallelModuleBase>,
                "a DataParallel or DistributedDataParallel can't be wrapped "
                "again: wrap the module itself");
  static_assert(detail::check_forward<M>());

 public:
  using Output = std::decay_t<detail::ForwardResult<M>>;

  /// Makes one step that keeps every device equally busy: forward, `loss` and
  /// backward per shard, reduction, and `optimizer`'s update by all threads.
  ///
  /// `loss(output, target)` is the mean over a shard's samples and is called in
  /// the shard's thread. The step's gradient is that of the mean over the
  /// batch, however uneven the split. Gradients that are already in .grad are
  /// added to the step's gradients. Afterwards .grad of all parameters is
  /// empty, also for parameters that `optimizer` does not have. Nothing is
  /// updated if the loss, or the norm that `options` limits, is not finite. The
  /// first time, a warning names the parameter or gradient (see
  /// StepResult::not_finite). With several ranks, each passes its own part of
  /// the batch, and a loss that uses a leaf from outside the module is refused,
  /// because each rank would train its own copy. The loss may create leaves
  /// (x.detach().requires_grad_(), for a gradient penalty).
  template <class Input, class Target, class Loss>
  StepResult train_step(const Input& input, const Target& target,
                        const Loss& loss, optim::Optimizer& optimizer,
                        const TrainStepOptions& options = {}) {
    return ParallelModuleBase::train_step(
        pack_inputs(input), c10::IValue(target), typed<Target>(loss), optimizer,
        options);
  }
  /// Same, with any LibTorch optimizer, its parameter groups and its
  /// learning-rate scheduler. SGD, Adam and AdamW are updated block by block,
  /// like Lockstep's own optimizers. Others are updated by their step() on
  /// every rank, which must not need a closure.
  template <class Input, class Target, class Loss>
  StepResult train_step(const Input& input, const Target& target,
                        const Loss& loss, torch::optim::Optimizer& optimizer,
                        const TrainStepOptions& options = {}) {
    return ParallelModuleBase::train_step(
        pack_inputs(input), c10::IValue(target), typed<Target>(loss), optimizer,
        options);
  }
  /// Same, but updates nothing: adds the gradients to the parameters' .grad, as
  /// backward() does, even if they are not finite.
  template <class Input, class Target, class Loss>
  StepResult train_step(const Input& input, const Target& target,
                        const Loss& loss,
                        const TrainStepOptions& options = {}) {
    return ParallelModuleBase::train_step(
        pack_inputs(input), c10::IValue(target), typed<Target>(loss), options);
  }

  /// Reports at compile time what can't be the optimizer.
  template <class Input, class Target, class Loss, class Other, class... Rest>
  requires(!std::convertible_to<Other&, optim::Optimizer&> &&
           !std::convertible_to<Other&, torch::optim::Optimizer&> &&
           !std::convertible_to<Other, TrainStepOptions>) StepResult
      train_step(const Input&, const Target&, const Loss&, Other&&,
                 const Rest&...) {
    constexpr bool has_loose_inputs = std::convertible_to<Loss, torch::Tensor>;
    static_assert(!has_loose_inputs,
                  "the inputs of a forward() that takes several are one "
                  "argument of train_step(): "
                  "train_step(std::make_tuple(a, b), target, loss, optimizer)");
    static_assert(has_loose_inputs || detail::kNever<Other>,
                  "after the loss function, train_step() takes an optimizer, "
                  "*optimizer if you have a pointer to it, and "
                  "TrainStepOptions()");
    return {};
  }

  /// Returns the wrapped module, with the names and the state dict that it has
  /// without a wrapper.
  std::shared_ptr<M> module() const { return module_; }
  bool is_training() const noexcept override { return module_->is_training(); }

 protected:
  using Factory = std::function<std::shared_ptr<M>()>;

  ParallelModule(const std::shared_ptr<M>& module, const Factory& factory,
                 std::vector<Device> devices, DataParallelOptions options)
      : torch::nn::Module("DataParallel"),
        ParallelModuleBase(engine_module(module, factory), std::move(devices),
                           std::move(options)),
        module_(register_module("module", module)) {}
  ParallelModule(const std::shared_ptr<M>& module, const Factory& factory,
                 const ProcessGroup& process_group,
                 const DistributedDataParallelOptions& options)
      : torch::nn::Module("DistributedDataParallel"),
        ParallelModuleBase(engine_module(module, factory), process_group,
                           options),
        module_(register_module("module", module)) {}

  template <class... Inputs>
  static std::vector<c10::IValue> pack(Inputs&&... inputs) {
    using Arguments = detail::ForwardArguments<M>;
    static_assert(sizeof...(Inputs) == std::tuple_size_v<Arguments>,
                  "forward() takes another number of arguments");
    return detail::pack<Arguments>(std::index_sequence_for<Inputs...>(),
                                   std::forward<Inputs>(inputs)...);
  }

 private:
  template <class Input>
  static std::vector<c10::IValue> pack_inputs(const Input& input) {
    return pack(input);
  }
  template <class... Inputs>
  static std::vector<c10::IValue> pack_inputs(
      const std::tuple<Inputs...>& inputs) {
    return std::apply([](const auto&... each) { return pack(each...); },
                      inputs);
  }

  template <class Target, class Loss>
  static ShardLoss typed(const Loss& loss) {
    using Plain = typename detail::Unshared<Target>::Type;
    static_assert(std::invocable<const Loss&, Output, Plain>,
                  "the loss must be a function of forward()'s output and the "
                  "target, such as [](const torch::Tensor& output, const "
                  "torch::Tensor& target) { return "
                  "torch::cross_entropy_loss(output, target); }");
    if constexpr (std::invocable<const Loss&, Output, Plain>) {
      using Value = std::invoke_result_t<const Loss&, Output, Plain>;
      static_assert(std::convertible_to<Value, WeightedLoss>,
                    "the loss function must return a tensor with a graph, not "
                    "its number (item()), or a lockstep::WeightedLoss");
      if constexpr (std::convertible_to<Value, WeightedLoss>) {
        return [&loss](const c10::IValue& output,
                       const c10::IValue& target) -> WeightedLoss {
          return loss(detail::from_ivalue<Output>(output),
                      detail::from_ivalue<Plain>(target));
        };
      }
    }
    return {};
  }

  std::shared_ptr<M> module_;
};

/// Specialization for TorchScript: inputs and output are IValues. Changes to
/// attributes of the script that are neither tensors nor modules are followed.
/// Values that a forward writes to them are kept, like those of buffers.
template <>
class ParallelModule<torch::jit::Module> : public ParallelModuleBase {
 public:
  using ParallelModuleBase::train_step;

  torch::jit::Module& module() { return module_; }
  std::vector<torch::Tensor> parameters() const;
  void train(bool on = true) { module_.train(on); }
  void eval() { module_.eval(); }

 protected:
  ParallelModule(const torch::jit::Module& module, std::vector<Device> devices,
                 DataParallelOptions options)
      : ParallelModuleBase(engine_module(module), std::move(devices),
                           std::move(options)),
        module_(module) {}
  ParallelModule(const torch::jit::Module& module,
                 const ProcessGroup& process_group,
                 const DistributedDataParallelOptions& options)
      : ParallelModuleBase(engine_module(module), process_group, options),
        module_(module) {}

 private:
  torch::jit::Module module_;
};

namespace detail {

/// Holds a wrapper, as the holders of torch::nn hold a module. Copies share it.
/// Unlike theirs, a const holder gives access to a wrapper that can be changed.
template <class Impl>
class WrapperHolder : public torch::nn::ModuleHolder<Impl> {
  using Holder = torch::nn::ModuleHolder<Impl>;

 public:
  /// Makes an empty holder, for a member that register_module() sets later.
  // NOLINTNEXTLINE(google-explicit-constructor)
  WrapperHolder(std::nullptr_t) : Holder(nullptr) {}
  // NOLINTNEXTLINE(google-explicit-constructor)
  WrapperHolder(std::shared_ptr<Impl> impl) : Holder(std::move(impl)) {}

  Impl* operator->() const { return this->ptr().get(); }
  Impl& operator*() const { return *this->ptr(); }
  template <class... Inputs>
  auto operator()(Inputs&&... inputs) const {
    return this->ptr()->forward(std::forward<Inputs>(inputs)...);
  }
};

}  // namespace detail

}  // namespace lockstep
