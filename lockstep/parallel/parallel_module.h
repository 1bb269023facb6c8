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
#include "lockstep/parallel/ddp/ddp_options.h"
#include "lockstep/parallel/engine.h"
#include "lockstep/parallel/exchange/comm_hooks.h"
#include "lockstep/parallel/group/data_parallel_options.h"
#include "lockstep/parallel/module/invoke.h"
#include "lockstep/parallel/module/module_source.h"
#include "lockstep/parallel/module/replicate.h"  // IWYU pragma: export
#include "lockstep/parallel/module/wrap_arguments.h"

namespace lockstep {

namespace optim {
class FusedOptimizer;
}

/// The public functions of DataParallel and DistributedDataParallel that do not
/// depend on the module's type. engine.h describes them.
class ParallelModuleBase : protected Engine {
 public:
  using Engine::copy_bytes;
  using Engine::devices;
  using Engine::join;
  using Engine::load_buffers;
  using Engine::no_sync;
  using Engine::phase_times;
  using Engine::rebuild;
  using Engine::register_comm_hook;
  using Engine::set_step;
  using Engine::shards;
  using Engine::share_parameters;
  using Engine::split;
  using Engine::unshare_parameters;
  using Engine::verify_next_step;
  using Engine::whole_state;
  using Engine::workers;

 protected:
  using Engine::Engine;

 private:
  friend class optim::FusedOptimizer;
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
  ///
  /// `optimizer` is any of torch::optim, with its parameter groups and its
  /// learning-rate scheduler. All threads share the update of an SGD, Adam or
  /// AdamW, block by block. Others are updated by their step() on every rank,
  /// which must not need a closure.
  template <class Input, class Target, class Loss>
  StepResult train_step(const Input& input, const Target& target,
                        const Loss& loss, torch::optim::Optimizer& optimizer,
                        const TrainStepOptions& options = {}) {
    return Engine::train_step(pack_inputs(input), c10::IValue(target),
                              typed<Target>(loss), {.whole = &optimizer},
                              options);
  }
  /// Same, but updates nothing: adds the gradients to the parameters' .grad, as
  /// backward() does, even if they are not finite.
  template <class Input, class Target, class Loss>
  StepResult train_step(const Input& input, const Target& target,
                        const Loss& loss,
                        const TrainStepOptions& options = {}) {
    return Engine::train_step(pack_inputs(input), c10::IValue(target),
                              typed<Target>(loss), {}, options);
  }

  /// Reports at compile time what can't be the optimizer.
  template <class Input, class Target, class Loss, class Other, class... Rest>
  requires(!std::convertible_to<Other&, torch::optim::Optimizer&> &&
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
  /// Makes a step, like train_step() of a C++ module. `loss` gets the output
  /// and the target of a shard.
  StepResult train_step(const std::vector<c10::IValue>& inputs,
                        const c10::IValue& target, const ShardLoss& loss,
                        torch::optim::Optimizer& optimizer,
                        const TrainStepOptions& options = {}) {
    return Engine::train_step(inputs, target, loss, {.whole = &optimizer},
                              options);
  }
  StepResult train_step(const std::vector<c10::IValue>& inputs,
                        const c10::IValue& target, const ShardLoss& loss,
                        const TrainStepOptions& options = {}) {
    return Engine::train_step(inputs, target, loss, {}, options);
  }

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
