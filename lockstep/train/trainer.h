#pragma once

#include <concepts>
#include <cstddef>
#include <functional>
#include <map>
#include <memory>
#include <mutex>
#include <string>
#include <tuple>
#include <type_traits>
#include <typeinfo>
#include <utility>
#include <vector>

#include <c10/util/Type.h>
#include <torch/nn/cloneable.h>
#include <torch/nn/pimpl.h>
#include <torch/optim/optimizer.h>
#include <torch/script.h>
#include <torch/types.h>

#include "lockstep/parallel/module/script_scope.h"
#include "lockstep/parallel/parallel_module.h"
#include "lockstep/train/dataset_source.h"
#include "lockstep/train/in_order.h"
#include "lockstep/train/run_training.h"
#include "lockstep/train/task.h"

namespace lockstep::train {

namespace detail {

/// The argument types of `F`, a function object with two arguments and a single
/// operator(); tensors for a generic lambda.
template <class F, class = void>
struct LossArguments {
  using First = torch::Tensor;
  using Second = torch::Tensor;
};
template <class R, class C, class A, class B>
struct LossArguments<R (C::*)(A, B) const> {
  using First = std::decay_t<A>;
  using Second = std::decay_t<B>;
};
template <class R, class C, class A, class B>
struct LossArguments<R (C::*)(A, B)> : LossArguments<R (C::*)(A, B) const> {};
template <class F>
struct LossArguments<F, std::void_t<decltype(&F::operator())>>
    : LossArguments<decltype(&F::operator())> {};

/// Returns a shared_ptr<M>. Also takes the holder of a TORCH_MODULE.
template <class M>
std::shared_ptr<M> pointer_to(std::shared_ptr<M> module) {
  return module;
}
template <class M>
std::shared_ptr<M> pointer_to(const torch::nn::ModuleHolder<M>& module) {
  return module.ptr();
}
inline std::shared_ptr<torch::jit::Module> pointer_to(
    const torch::jit::Module& module) {
  return std::make_shared<torch::jit::Module>(module);
}

template <class T>
concept PointerToOptimizer =
    std::convertible_to<T, std::unique_ptr<torch::optim::Optimizer>> ||
    std::convertible_to<T, std::unique_ptr<optim::Optimizer>>;

/// A module of type `M`. Its forward() determines its arguments and output.
template <class M>
struct ModuleKind {
  using Make = std::function<std::shared_ptr<M>()>;

  /// The type of the output. `Argument` is the type that a loss takes.
  template <class Argument>
  using Output = std::decay_t<lockstep::detail::ForwardResult<M>>;
  static constexpr size_t kArguments =
      std::tuple_size_v<lockstep::detail::ForwardArguments<M>>;

  /// Returns true if clone() copies `module`. A class that derives from one
  /// that is Cloneable has the clone() of its base class.
  static bool is_cloned(const M& module) {
    return std::is_base_of_v<torch::nn::Cloneable<M>, M> &&
           typeid(module) == typeid(M);
  }
  static Make replicator(const std::shared_ptr<M>& module, const Make& make) {
    return is_cloned(*module) ? lockstep::detail::cloner_of(module) : make;
  }
  static Engine::Module engine_module(const std::shared_ptr<M>& module,
                                      const Make& make) {
    return lockstep::engine_module<M>(module, replicator(module, make));
  }
  /// Scope of what a step calls of a module. Nothing to do for this kind.
  struct StepScope {};

  static ModuleHandle handle(const std::shared_ptr<M>& module) {
    return lockstep::detail::typed_handle(module);
  }
};

/// A TorchScript module. Its arguments and output are known only at run time.
template <>
struct ModuleKind<torch::jit::Module> {
  using Module = torch::jit::Module;
  using Make = std::function<std::shared_ptr<Module>()>;

  template <class Argument>
  using Output = Argument;
  /// 0: as many arguments as a sample has inputs.
  static constexpr size_t kArguments = 0;

  static Make replicator(const std::shared_ptr<Module>& module, const Make&) {
    return [module] { return std::make_shared<Module>(clone_module(*module)); };
  }
  static Engine::Module engine_module(const std::shared_ptr<Module>& module,
                                      const Make&) {
    return lockstep::engine_module(*module);
  }
  using StepScope = ScriptScope;

  static ModuleHandle handle(const std::shared_ptr<Module>& module) {
    return handle_of(*module);
  }
};

/// Packs the result of a step function as the output of a module.
c10::IValue pack_values(const LossAndMetrics& values);
LossAndMetrics unpack_values(const c10::IValue& values);

}  // namespace detail

/// Trains a module of your own on your own data: on one device or on several,
/// in one process or in many, to the same bits, with exact resume, restarts and
/// reports.
///
///     lockstep::Trainer trainer([] { return std::make_shared<Net>(); });
///     trainer.data(std::make_shared<Waves>(4096))
///         .loss([](torch::Tensor output, torch::Tensor target) {
///           return torch::mse_loss(output, target);
///         })
///         .optimizer([](Net& net) {
///           return std::make_unique<torch::optim::AdamW>(net.parameters());
///         });
///     return lockstep::train_main(argc, argv, trainer);
///
/// The arguments are functions that make things, because a run that lost
/// another rank makes them again. The module is made with LibTorch's default
/// generator at the run's seed. It is copied by clone() if it is a
/// torch::nn::Cloneable, else by the same function.
///
/// For TorchScript, the function returns a torch::jit::Module, and the argument
/// types of the loss say what forward() returns.
template <class M>
class Trainer : public Task {
  using Kind = detail::ModuleKind<M>;

 public:
  /// `make` returns a new module.
  template <class Make>
  explicit Trainer(Make make)
      : make_([make = std::move(make)] { return detail::pointer_to(make()); }),
        name_(c10::demangle(typeid(M).name())) {}

  /// Sets the name of the model in reports and checkpoints. The default is the
  /// name of its type.
  Trainer& name(std::string name) {
    name_ = std::move(name);
    return *this;
  }
  /// Adds a setting that the bits of a run depend on, and that must be the same
  /// when a run is resumed: one of your own options, say.
  Trainer& setting(const std::string& key, const std::string& value) {
    settings_[key] = value;
    return *this;
  }

  /// Sets the samples to train on. See DatasetSource for what a dataset is, and
  /// in_order() for one that can only be read from its beginning.
  template <class D>
  Trainer& data(std::shared_ptr<D> dataset) {
    training_data_ = source_of(std::move(dataset));
    return *this;
  }
  /// Does the same with `collate`, which makes the inputs and the target of a
  /// whole batch, as a pair, from a vector of samples.
  template <class D, class Collate>
  Trainer& data(std::shared_ptr<D> dataset, const Collate& collate) {
    training_data_ = source_of(std::move(dataset), collate);
    return *this;
  }
  /// Sets the samples to evaluate on.
  template <class D>
  Trainer& test_data(std::shared_ptr<D> dataset) {
    evaluation_data_ = source_of(std::move(dataset));
    return *this;
  }
  template <class D, class Collate>
  Trainer& test_data(std::shared_ptr<D> dataset, const Collate& collate) {
    evaluation_data_ = source_of(std::move(dataset), collate);
    return *this;
  }

  /// Sets the loss. `loss(output, target)` returns the loss of a shard: a
  /// scalar tensor, the mean over the samples; a WeightedLoss, the mean over
  /// tokens or other units and their number; or LossAndMetrics. Called in the
  /// shard's thread.
  template <class F>
  Trainer& loss(const F& loss) {
    using Arguments = detail::LossArguments<F>;
    using Output = typename Kind::template Output<typename Arguments::First>;
    using Target = typename Arguments::Second;
    loss_ = [loss](const c10::IValue& output,
                   const c10::IValue& target) -> LossAndMetrics {
      return loss(lockstep::detail::from_ivalue<Output>(output),
                  lockstep::detail::from_ivalue<Target>(target));
    };
    return *this;
  }
  /// Sets how losses are combined. kSum: the loss of a shard is a sum over its
  /// samples. The loss of a batch and of the evaluation data is then also a
  /// sum.
  Trainer& loss_reduction(LossReduction reduction) {
    loss_reduction_ = reduction;
    return *this;
  }
  /// Sets what happens to an empty batch. kSkip: a batch is left out if the
  /// weights of its losses add up to 0 (because all its targets are ignored,
  /// say). kError: it ends the run.
  Trainer& empty_batch(EmptyBatch empty_batch) {
    empty_batch_ = empty_batch;
    return *this;
  }
  /// Replaces forward() and the loss. `step(module, batch)` returns what a loss
  /// returns. It gets a shard and a copy of the module. It may call any method
  /// of the module, and forward() several times.
  template <class F>
  Trainer& step(const F& step) {
    step_ = [step](M& module, const data::Batch& batch) -> LossAndMetrics {
      return step(module, batch);
    };
    return *this;
  }

  /// Sets the optimizer. `make(module)` returns a std::unique_ptr to an
  /// optimizer of torch::optim or lockstep::optim for the module's parameters.
  /// `make(module, make_state)` also gets the function that provides memory for
  /// the state, which the optimizers of lockstep::optim take as an option.
  template <class Make>
  Trainer& optimizer(const Make& make) {
    make_optimizer_ = [make](M& module, const optim::StateFactory& make_state,
                             const Schedule& schedule,
                             const TorchSchedule& torch_schedule) {
      auto optimizer = [&] {
        if constexpr (std::is_invocable_v<Make, M&,
                                          const optim::StateFactory&>) {
          return make(module, make_state);
        } else {
          return make(module);
        }
      }();
      using Made = decltype(optimizer);
      if constexpr (!detail::PointerToOptimizer<Made>) {
        static_assert(lockstep::detail::kNever<Made>,
                      "the function given to optimizer() must return a "
                      "std::unique_ptr to an optimizer, such as "
                      "std::make_unique<torch::optim::SGD>(net.parameters(), "
                      "0.1)");
        return nullptr;
      } else if constexpr (std::convertible_to<
                               Made, std::unique_ptr<optim::Optimizer>>) {
        static_cast<void>(torch_schedule);
        return make_run_optimizer(
            std::unique_ptr<optim::Optimizer>(std::move(optimizer)), schedule);
      } else {
        return make_run_optimizer(
            std::unique_ptr<torch::optim::Optimizer>(std::move(optimizer)),
            make_state, schedule, torch_schedule);
      }
    };
    return *this;
  }

  /// Sets a schedule. The learning rates of each step are those that the
  /// optimizer was made with, multiplied by `schedule`, as in torch's LambdaLR.
  Trainer& schedule(Schedule schedule) {
    schedule_ = std::move(schedule);
    return *this;
  }
  /// Sets a schedule of LibTorch. `make(optimizer)` returns a std::shared_ptr
  /// to an LRScheduler of torch::optim. Its step() is called after each epoch.
  template <class Make>
  Trainer& schedule_per_epoch(const Make& make) {
    torch_schedule_ = {.make = make};
    return *this;
  }
  /// Does the same, but calls step() after each step.
  template <class Make>
  Trainer& schedule_per_step(const Make& make) {
    torch_schedule_ = {.make = make, .is_per_step = true};
    return *this;
  }

  /// Adds a callback that the run calls after a step, after an evaluation, and
  /// so on. A run that continues in this process calls the same object.
  Trainer& callback(std::shared_ptr<Callback> callback) {
    callbacks_.push_back(std::move(callback));
    return *this;
  }

  /// Trains. Every rank of context.world calls it. See run_training().
  RunReport fit(const TrainOptions& options, const RunContext& context = {}) {
    return run_training(*this, options, context);
  }
  /// Returns the module that was trained last; null before training.
  std::shared_ptr<M> module() const { return module_; }

  // Implementation of Task.

  void begin(const TrainOptions& options, const Plan& plan,
             const Settings& saved) override {
    static_cast<void>(plan);
    static_cast<void>(saved);
    check_complete();
    if (step_ && options.strategy == Strategy::kDataParallelClassic) {
      refuse("--strategy dp-classic can't run a step function",
             "a loss, or another strategy");
    }
  }
  std::shared_ptr<const data::BatchSource> training_data() override {
    return training_data_;
  }
  std::shared_ptr<const data::BatchSource> evaluation_data() override {
    return evaluation_data_;
  }
  Settings model() const override { return {{"name", name_}}; }
  Settings settings() const override { return settings_; }

  Engine::Module make_model(const torch::Device& device) override {
    module_ = checked_module();
    module_->to(device);
    Engine::Module module = Kind::engine_module(module_, make_);
    if (!step_) return module;
    return {
        .read = [this, read = module.read,
                 original = module_] { return with_step(read(), original); },
        .replicate =
            [this, replicate = Kind::replicator(module_, make_)] {
              const auto replica = replicate();
              return with_step(Kind::handle(replica), replica);
            }};
  }

  std::unique_ptr<RunOptimizer> make_optimizer(
      const optim::StateFactory& make_state) override {
    return make_optimizer_(*module_, make_state, schedule_, torch_schedule_);
  }

  std::vector<std::shared_ptr<Callback>> callbacks() override {
    return callbacks_;
  }

  data::Batch prepare(data::Batch batch) const override {
    if (!step_) return batch;
    // The step function gets both.
    std::vector<c10::IValue> arguments = batch.arguments();
    arguments.push_back(batch.any_target());
    return {.inputs = std::move(arguments),
            .samples = batch.samples,
            .total = batch.total};
  }

  LossAndMetrics loss(const c10::IValue& output,
                      const c10::IValue& target) const override {
    return step_ ? detail::unpack_values(output) : loss_(output, target);
  }
  LossReduction loss_reduction() const override { return loss_reduction_; }
  EmptyBatch empty_batch() const override { return empty_batch_; }

 private:
  template <class D>
  static std::shared_ptr<DatasetSource<D>> dataset_source(
      std::shared_ptr<D> dataset) {
    return std::make_shared<DatasetSource<D>>(std::move(dataset),
                                              Kind::kArguments);
  }
  template <class D>
  static std::shared_ptr<const data::BatchSource> source_of(
      std::shared_ptr<D> dataset) {
    if constexpr (std::is_base_of_v<data::BatchSource, D>) {
      return dataset;
    } else {
      return dataset_source(std::move(dataset));
    }
  }
  template <class D, class Collate>
  static std::shared_ptr<const data::BatchSource> source_of(
      std::shared_ptr<D> dataset, const Collate& collate) {
    auto source = dataset_source(std::move(dataset));
    source->set_collate(collate);
    return source;
  }

  [[noreturn]] static void refuse(const std::string& what,
                                  const std::string& expected) {
    throw InvalidArgument(
        "train",
        {.code = ErrorCode::kMisuse, .what = what, .expected = expected});
  }
  void check_complete() const {
    if (!training_data_) refuse("the Trainer has no data", "a call of data()");
    if (!loss_ && !step_) {
      refuse("the Trainer has no loss", "a call of loss() or step()");
    }
    if (!make_optimizer_) {
      refuse("the Trainer has no optimizer", "a call of optimizer()");
    }
    if (schedule_ && torch_schedule_.make) {
      refuse("the Trainer has two schedules", "one of them");
    }
  }
  std::shared_ptr<M> checked_module() const {
    auto module = make_();
    if (!module) refuse("there is no module", "one that the function made");
    return module;
  }

  ModuleHandle with_step(ModuleHandle handle, std::shared_ptr<M> module) const {
    handle.forward = [step = step_, module = std::move(module)](
                         const std::vector<c10::IValue>& arguments) {
      const data::Batch batch = data::make_batch(
          std::vector<c10::IValue>(arguments.begin(), arguments.end() - 1),
          arguments.back(),
          /*samples=*/0);
      [[maybe_unused]] const typename Kind::StepScope scope{};
      return detail::pack_values(step(*module, batch));
    };
    return handle;
  }

  std::function<std::shared_ptr<M>()> make_;
  std::string name_;
  Settings settings_;
  std::shared_ptr<const data::BatchSource> training_data_;
  std::shared_ptr<const data::BatchSource> evaluation_data_;
  std::function<LossAndMetrics(const c10::IValue&, const c10::IValue&)> loss_;
  std::function<LossAndMetrics(M&, const data::Batch&)> step_;
  LossReduction loss_reduction_ = LossReduction::kMean;
  EmptyBatch empty_batch_ = EmptyBatch::kError;
  std::function<std::unique_ptr<RunOptimizer>(
      M&, const optim::StateFactory&, const Schedule&, const TorchSchedule&)>
      make_optimizer_;
  Schedule schedule_;
  TorchSchedule torch_schedule_;
  std::vector<std::shared_ptr<Callback>> callbacks_;
  std::shared_ptr<M> module_;
};

namespace detail {
template <class Make>
using ModuleMadeBy =
    typename decltype(pointer_to(std::declval<Make>()()))::element_type;
}  // namespace detail

template <class Make>
Trainer(Make) -> Trainer<detail::ModuleMadeBy<Make>>;

}  // namespace lockstep::train

namespace lockstep {
using train::LossAndMetrics;
using train::Trainer;
}  // namespace lockstep
