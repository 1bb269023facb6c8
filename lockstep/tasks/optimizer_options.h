#pragma once

#include <cstdint>
#include <memory>
#include <vector>

#include "lockstep/checkpoint/info.h"
#include "lockstep/optim/slot.h"
#include "lockstep/train/run_optimizer.h"

namespace lockstep::tasks {

enum class OptimizerKind { kSgd, kAdamW };
enum class ScheduleKind {
  kConstant,
  kSteps,   ///< lr x 0.1 at each of `milestones`: 0.1, 0.01, ...
  kCosine,  ///< linear warm-up, then cosine to final_lr
};

/// The optimizer and the learning rates of Lockstep's own tasks.
struct OptimizerOptions {
  OptimizerKind optimizer = OptimizerKind::kSgd;
  double lr = 0.1;
  double momentum = 0.9;  ///< kSgd
  double weight_decay = 5e-4;
  bool nesterov = false;  ///< kSgd
  double beta2 = 0.999;   ///< kAdamW
  /// kAdamW: no weight decay for parameters with one dimension, such as biases
  /// and the weights of norms.
  bool decays_matrices_alone = false;
  ScheduleKind schedule = ScheduleKind::kCosine;
  double final_lr = 0;  ///< kCosine: at the end
  int64_t warmup_steps = 0;
  std::vector<int64_t> milestones;  ///< epochs
};

/// Throws InvalidArgument naming the invalid option.
void check(const OptimizerOptions& options);

/// Returns the learning rate of a step. kSteps: lr x 0.1 for each milestone
/// that the epoch has reached. kCosine: half a cosine from the end of the
/// warm-up down to final_lr at total_steps (torch's CosineAnnealingLR). During
/// the warm-up, each kind of schedule is multiplied by
/// (step + 1) / warmup_steps.
double learning_rate(const OptimizerOptions& options,
                     const training::Position& position);

std::unique_ptr<training::RunOptimizer> make_optimizer(
    const OptimizerOptions& options,
    const std::vector<torch::Tensor>& parameters,
    const optim::StateFactory& make_state);

/// Returns the settings among these that a run's bits depend on.
Settings settings_of(const OptimizerOptions& options);

}  // namespace lockstep::tasks
