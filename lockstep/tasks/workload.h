#pragma once

#include <cstdint>
#include <memory>
#include <string>
#include <utility>

#include <torch/types.h>

#include "lockstep/models/model.h"
#include "lockstep/tasks/optimizer_options.h"
#include "lockstep/train/task.h"
#include "lockstep/train/training_plan.h"

namespace lockstep::tasks {

/// A model with an optimizer and random samples, for commands that measure
/// steps and not what they learn.
class Workload {
 public:
  virtual ~Workload() = default;

  /// Returns the name of the model.
  virtual std::string model() const = 0;
  virtual const OptimizerOptions& optimizer() const = 0;

  /// Makes a task that trains it. The task is never asked for data.
  virtual std::unique_ptr<training::Task> make_task() const = 0;
  /// Makes the model on the CPU, for a loop on the devices of `plan`. The
  /// weights are drawn from LibTorch's default generator.
  virtual std::shared_ptr<models::Model> make_model(
      const training::Plan& plan) const = 0;
  /// Draws inputs and targets, each with `samples` as its first size, from
  /// LibTorch's default generator.
  virtual std::pair<torch::Tensor, torch::Tensor> random_samples(
      const training::Plan& plan, int64_t samples) const = 0;

  /// Returns the same workload with activations that are computed again in the
  /// backward, which saves memory. Returns null if the model can't do this, or
  /// does it already.
  virtual std::shared_ptr<const Workload> recomputing() const {
    return nullptr;
  }
};

}  // namespace lockstep::tasks
