#pragma once

#include <memory>
#include <string>
#include <vector>

#include <ATen/core/ivalue.h>
#include <torch/types.h>

#include "lockstep/checkpoint/info.h"
#include "lockstep/checkpoint/state_dict.h"
#include "lockstep/data/batch_source.h"
#include "lockstep/parallel/group/data_parallel_options.h"
#include "lockstep/parallel/module/module_source.h"
#include "lockstep/train/callback.h"
#include "lockstep/train/metrics.h"
#include "lockstep/train/run_optimizer.h"
#include "lockstep/train/train_options.h"

namespace lockstep {
class Engine;
}

namespace lockstep::training {

struct Plan;

/// Interface to what a run trains: a model, its data, its loss and its
/// optimizer.
///
/// A run asks for the parts in the order below. After another rank was lost it
/// starts over and asks again. The model and the optimizer must then be new
/// ones.
class Task {
 public:
  virtual ~Task() = default;

  /// Lets the task make its remaining choices before it is asked for anything.
  /// Gets the run's devices, and the settings of the run that this one
  /// continues.
  virtual void begin(const TrainOptions& /*options*/, const Plan& /*plan*/,
                     const Settings& /*saved*/) {}

  /// Takes the result of model() in the run that this one continues. Called
  /// before begin(), and only if this run continues another one.
  virtual void go_on_with(const Settings& /*model*/) {}

  virtual std::shared_ptr<const data::BatchSource> training_data() = 0;
  /// Returns null if there is nothing to evaluate on.
  virtual std::shared_ptr<const data::BatchSource> evaluation_data() {
    return nullptr;
  }
  /// Returns the tokens of a sample of a language model; 0 otherwise.
  virtual int64_t tokens_of_sample() const { return 0; }
  /// Returns the floating point operations of forward and backward for a
  /// sample; 0: not known.
  virtual double flops_of_sample() const { return 0; }

  /// Returns the model's "name", and everything else that it is built from.
  virtual Settings model() const = 0;
  /// Returns what the bits of a run depend on besides the options of the run:
  /// the settings of data, loss and optimizer.
  virtual Settings settings() const { return {}; }

  /// Makes a new model on `device`, with weights from LibTorch's default
  /// generator, which has the run's seed.
  virtual ModuleSource make_model(const torch::Device& device) = 0;
  /// Renames and removes `tensors`, which were read from the weights at `path`,
  /// so that they are the state of the model.
  virtual void adapt_weights(const std::string& /*path*/,
                             NamedTensors& /*tensors*/) const {}
  /// Makes an optimizer for the model's parameters. `make_state` provides
  /// memory for its state.
  virtual std::unique_ptr<RunOptimizer> make_optimizer(
      const optim::StateFactory& make_state) = 0;

  /// Returns a batch in the form that the model takes. Called before each step.
  virtual data::Batch prepare(data::Batch batch) const { return batch; }
  /// Returns whether the replicas have to be made again, because the program
  /// changed the module since the last call. Called before each step.
  virtual bool take_rebuild() { return false; }
  /// Gets what computes the steps, before the first one; null at the end.
  virtual void set_engine(Engine* /*engine*/) {}
  /// Returns the callbacks that the run calls.
  virtual std::vector<std::shared_ptr<Callback>> callbacks() { return {}; }
  /// Computes the loss of a shard from the model's output and the batch's
  /// target, with its weight if it is not a mean over the samples. Called in
  /// the threads of several devices at once, in training and in evaluation.
  virtual LossAndMetrics loss(const c10::IValue& output,
                              const c10::IValue& target) const = 0;
  /// Returns whether the loss of a batch, or of the evaluation data, is the
  /// mean or the sum of the losses of its shards.
  virtual LossReduction loss_reduction() const { return LossReduction::kMean; }
  /// Returns what to do with a batch if its losses have the weight 0 in total.
  virtual EmptyBatch empty_batch() const { return EmptyBatch::kError; }
};

}  // namespace lockstep::training
