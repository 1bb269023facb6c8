#pragma once

#include <concepts>
#include <functional>
#include <memory>
#include <string>
#include <type_traits>
#include <typeinfo>
#include <utility>
#include <vector>

#include <c10/util/Type.h>
#include <torch/optim/optimizer.h>
#include <torch/types.h>

#include "lockstep/base/error.h"
#include "lockstep/checkpoint/info.h"
#include "lockstep/comm/process_group.h"
#include "lockstep/data/batch_source.h"
#include "lockstep/data/dataset_source.h"
#include "lockstep/data/in_order.h"
#include "lockstep/optim/parameters.h"  // IWYU pragma: export
#include "lockstep/parallel/group/data_parallel_options.h"
#include "lockstep/parallel/module/invoke.h"
#include "lockstep/parallel/module/module_source.h"
#include "lockstep/train/callback.h"
#include "lockstep/train/metrics.h"
#include "lockstep/train/module_kind.h"
#include "lockstep/train/run_report.h"
#include "lockstep/train/schedule.h"
#include "lockstep/train/train_options.h"

namespace lockstep {
class Engine;
}

namespace lockstep::training {

namespace detail {

/// Returns the batch from which the arguments of a step function were made.
data::Batch batch_of(const std::vector<c10::IValue>& arguments);
/// Packs the result of a step function as the output of a module.
c10::IValue pack_values(const LossAndMetrics& values);

}  // namespace detail

class TrainerTask;

/// The parts of a Trainer that do not depend on the type of the module.
class TrainerBase {
 public:
  virtual ~TrainerBase() = default;

  /// Trains and returns the report. With Strategy::kDistributed, every rank of
  /// `group` calls it with the same options. Rank 0 writes and prints, and has
  /// the complete report. Throws InvalidArgument in a rank of a launcher with
  /// another strategy or without `group`: each rank would train the same run.
  ///
  /// Throws TrainError if the loss is not finite (naming the step and the place
  /// where this was first seen), and whatever the data, the devices and the
  /// module throw.
  RunReport fit(const TrainOptions& options, const ProcessGroup& group = {});

  /// Makes the replicas again before the next step. Call it on every rank, from
  /// a callback, after a change that replicas don't follow: of a member of a
  /// submodule, or of an element of a vector.
  void rebuild() { wants_rebuild_ = true; }
  /// Lets a callback change the parameters: to clamp weights, say. Ranks on one
  /// host share them, so one rank's change would be every rank's. Call it on
  /// every rank, and then make the same change there, under
  /// torch::NoGradGuard. The next step checks that the parameters are equal,
  /// and shares them again. Needed for Strategy::kDistributed; otherwise it
  /// does nothing.
  void unshare_parameters();

 protected:
  using Optimizer = std::unique_ptr<torch::optim::Optimizer>;

  TrainerBase() = default;
  TrainerBase(const TrainerBase&) = default;
  TrainerBase& operator=(const TrainerBase&) = default;

  std::string name_;
  Settings settings_;
  std::shared_ptr<const data::BatchSource> training_data_;
  std::shared_ptr<const data::BatchSource> evaluation_data_;
  std::function<LossAndMetrics(const c10::IValue&, const c10::IValue&)> loss_;
  LossReduction loss_reduction_ = LossReduction::kMean;
  EmptyBatch empty_batch_ = EmptyBatch::kError;
  Schedule schedule_;
  TorchSchedule torch_schedule_;
  std::vector<std::shared_ptr<Callback>> callbacks_;

 private:
  friend class TrainerTask;
  bool wants_rebuild_ = false;
  Engine* engine_ = nullptr;  ///< during fit()

  virtual bool has_step() const = 0;
  virtual bool has_optimizer() const = 0;
  /// Makes a new module on `device`.
  virtual ModuleSource make_module(const torch::Device& device) = 0;
  /// Makes an optimizer for the module that was made last.
  virtual Optimizer make_optimizer() = 0;
};

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
class Trainer : public TrainerBase {
  using Kind = detail::ModuleKind<M>;
  using Step = std::function<LossAndMetrics(M&, const data::Batch&)>;
  struct Stack {};  // in place of a collate function

 public:
  /// `make` returns a new module.
  template <class Make>
  explicit Trainer(Make make)
      : make_([make = std::move(make)] { return detail::pointer_to(make()); }) {
    name_ = c10::demangle(typeid(M).name());
  }

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
  /// in_order() for one that can only be read from its beginning. Samples are
  /// stacked, unless there is a `collate`, which makes the inputs and the
  /// target of a whole batch, as a pair, from a vector of samples.
  template <class D, class Collate = Stack>
  Trainer& data(std::shared_ptr<D> dataset, const Collate& collate = {}) {
    training_data_ = source_of(std::move(dataset), collate);
    return *this;
  }
  /// Sets the samples to evaluate on.
  template <class D, class Collate = Stack>
  Trainer& test_data(std::shared_ptr<D> dataset, const Collate& collate = {}) {
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

  /// Sets the optimizer. `make(module)` returns a std::unique_ptr to an SGD,
  /// Adam, AdamW, RMSprop or Adagrad of torch::optim for the module's
  /// parameters.
  template <class Make>
  Trainer& optimizer(const Make& make) {
    static_assert(std::invocable<const Make&, M&>,
                  "the function given to optimizer() takes the module");
    if constexpr (std::invocable<const Make&, M&>) {
      using Made = std::invoke_result_t<const Make&, M&>;
      static_assert(std::convertible_to<Made, Optimizer>,
                    "the function given to optimizer() must return a "
                    "std::unique_ptr to an optimizer, such as "
                    "std::make_unique<torch::optim::SGD>(net.parameters(), "
                    "0.1)");
      if constexpr (std::convertible_to<Made, Optimizer>) {
        make_optimizer_ = [make](M& module) -> Optimizer {
          return make(module);
        };
      }
    }
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

  /// Returns the module that was trained last; null before training.
  std::shared_ptr<M> module() const { return module_; }

 private:
  template <class D, class Collate>
  static std::shared_ptr<const data::BatchSource> source_of(
      std::shared_ptr<D> dataset, const Collate& collate) {
    if constexpr (std::is_base_of_v<data::BatchSource, D>) {
      static_assert(std::same_as<Collate, Stack>, "a BatchSource has batches");
      return dataset;
    } else {
      auto source = std::make_shared<data::DatasetSource<D>>(std::move(dataset),
                                                             Kind::kArguments);
      if constexpr (!std::same_as<Collate, Stack>) source->set_collate(collate);
      return source;
    }
  }

  bool has_step() const override { return step_ != nullptr; }
  bool has_optimizer() const override { return make_optimizer_ != nullptr; }

  ModuleSource make_module(const torch::Device& device) override {
    module_ = make_();
    if (!module_) {
      throw InvalidArgument("train",
                            {.code = ErrorCode::kMisuse,
                             .what = "there is no module",
                             .expected = "one that the function made"});
    }
    module_->to(device);
    return {.read = [step = step_,
                     module = module_] { return handle_of(step, module); },
            .replicate =
                [step = step_, replicate = Kind::replicator(module_, make_)] {
                  return handle_of(step, replicate());
                }};
  }
  Optimizer make_optimizer() override { return make_optimizer_(*module_); }

  /// Returns a handle whose forward runs the step function, if there is one.
  static ModuleHandle handle_of(const Step& step,
                                const std::shared_ptr<M>& module) {
    ModuleHandle handle = Kind::handle(module);
    if (step) {
      handle.forward = [step,
                        module](const std::vector<c10::IValue>& arguments) {
        const data::Batch batch = detail::batch_of(arguments);
        [[maybe_unused]] const typename Kind::StepScope scope{};
        return detail::pack_values(step(*module, batch));
      };
    }
    return handle;
  }

  std::function<std::shared_ptr<M>()> make_;
  Step step_;
  std::function<Optimizer(M&)> make_optimizer_;
  std::shared_ptr<M> module_;
};

namespace detail {
template <class Make>
using ModuleMadeBy =
    typename decltype(pointer_to(std::declval<Make>()()))::element_type;
}  // namespace detail

template <class Make>
Trainer(Make) -> Trainer<detail::ModuleMadeBy<Make>>;

}  // namespace lockstep::training

namespace lockstep {
using training::LossAndMetrics;
using training::Trainer;
}  // namespace lockstep
