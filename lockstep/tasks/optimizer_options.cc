#include "lockstep/tasks/optimizer_options.h"

#include <algorithm>
#include <cmath>
#include <numbers>

#include <fmt/format.h>
#include <fmt/ranges.h>
#include <torch/optim/adamw.h>
#include <torch/optim/sgd.h>

#include "lockstep/base/error.h"
#include "lockstep/train/state/run_settings.h"
#include "lockstep/train/training_plan.h"

namespace lockstep::tasks {
namespace {

constexpr double kBeta1 = 0.9;

const char* name_of(ScheduleKind kind) {
  switch (kind) {
    case ScheduleKind::kConstant:
      return "constant";
    case ScheduleKind::kSteps:
      return "steps";
    case ScheduleKind::kCosine:
      return "cosine";
  }
  return "unknown";
}

// Returns the learning rate of a step as a factor of the first one.
double scheduled(const OptimizerOptions& options,
                 const training::Position& position) {
  switch (options.schedule) {
    case ScheduleKind::kConstant:
      return 1;
    case ScheduleKind::kSteps: {
      const auto reached =
          std::count_if(options.milestones.begin(), options.milestones.end(),
                        [&](int64_t epoch) { return epoch <= position.epoch; });
      return std::pow(0.1, static_cast<double>(reached));
    }
    case ScheduleKind::kCosine: {
      const int64_t steps =
          std::max<int64_t>(1, position.total_steps - options.warmup_steps);
      const int64_t step =
          std::clamp<int64_t>(position.step - options.warmup_steps, 0, steps);
      const double part =
          static_cast<double>(step) / static_cast<double>(steps);
      const double least = options.lr > 0 ? options.final_lr / options.lr : 0;
      return least +
             (1 - least) * 0.5 * (1 + std::cos(std::numbers::pi * part));
    }
  }
  return 1;
}

double factor(const OptimizerOptions& options,
              const training::Position& position) {
  const double factor = scheduled(options, position);
  if (position.step >= options.warmup_steps) return factor;
  return factor * static_cast<double>(position.step + 1) /
         static_cast<double>(options.warmup_steps);
}

bool is_matrix(const torch::Tensor& parameter) { return parameter.dim() > 1; }

/// Returns a group of matrices, which decay, and one of the other parameters.
/// This is also the order of the state in checkpoints.
std::vector<torch::optim::OptimizerParamGroup> decaying_and_others(
    std::vector<torch::Tensor> parameters,
    const torch::optim::AdamWOptions& options) {
  const auto others =
      std::stable_partition(parameters.begin(), parameters.end(), is_matrix);
  std::vector<torch::optim::OptimizerParamGroup> groups;
  const auto add = [&](auto first, auto last, double weight_decay) {
    if (first == last) return;
    auto own = std::make_unique<torch::optim::AdamWOptions>(options);
    own->weight_decay(weight_decay);
    groups.emplace_back(std::vector<torch::Tensor>(first, last),
                        std::move(own));
  };
  add(parameters.begin(), others, options.weight_decay());
  add(others, parameters.end(), 0);
  return groups;
}

std::unique_ptr<torch::optim::Optimizer> make_torch_optimizer(
    const OptimizerOptions& options,
    const std::vector<torch::Tensor>& parameters) {
  namespace to = torch::optim;
  if (options.optimizer == OptimizerKind::kSgd) {
    return std::make_unique<to::SGD>(parameters,
                                     to::SGDOptions(options.lr)
                                         .momentum(options.momentum)
                                         .weight_decay(options.weight_decay)
                                         .nesterov(options.nesterov));
  }
  const auto adamw = to::AdamWOptions(options.lr)
                         .betas({kBeta1, options.beta2})
                         .weight_decay(options.weight_decay);
  if (!options.decays_matrices_alone) {
    return std::make_unique<to::AdamW>(parameters, adamw);
  }
  return std::make_unique<to::AdamW>(decaying_and_others(parameters, adamw),
                                     adamw);
}

}  // namespace

void check(const OptimizerOptions& options) {
  training::check_not_negative("lr", options.lr);
  if (!(options.final_lr >= 0 && options.final_lr <= options.lr)) {
    throw InvalidArgument("train",
                          {.code = ErrorCode::kBadOption,
                           .what = "final_lr can't be used",
                           .expected = fmt::format("0 to lr, {}", options.lr),
                           .got = fmt::format("{}", options.final_lr)});
  }
  training::check_at_least("warmup_steps", options.warmup_steps, 0);
  training::check_not_negative("weight_decay", options.weight_decay);
  if (options.optimizer == OptimizerKind::kAdamW) {
    if (options.beta2 >= 0 && options.beta2 < 1) return;
    throw InvalidArgument("train", {.code = ErrorCode::kBadOption,
                                    .what = "beta2 can't be used",
                                    .expected = "at least 0 and below 1",
                                    .got = fmt::format("{}", options.beta2)});
  }
  training::check_not_negative("momentum", options.momentum);
  if (options.nesterov && options.momentum <= 0) {
    throw InvalidArgument("train", {.code = ErrorCode::kBadOption,
                                    .what = "Nesterov needs momentum",
                                    .expected = "a momentum above 0",
                                    .got = fmt::format("{}", options.momentum),
                                    .fix = "set momentum, 0.9 say"});
  }
}

double learning_rate(const OptimizerOptions& options,
                     const training::Position& position) {
  return options.lr * factor(options, position);
}

std::unique_ptr<training::RunOptimizer> make_optimizer(
    const OptimizerOptions& options,
    const std::vector<torch::Tensor>& parameters,
    const optim::StateFactory& make_state) {
  return std::make_unique<training::RunOptimizer>(
      make_torch_optimizer(options, parameters), make_state,
      [options](const training::Position& position) {
        return factor(options, position);
      },
      training::TorchSchedule(), optim::FirstMomentum::kZeros);
}

Settings settings_of(const OptimizerOptions& options) {
  const bool is_adamw = options.optimizer == OptimizerKind::kAdamW;
  Settings settings{
      {"optimizer", is_adamw ? "adamw" : "sgd"},
      {"lr", fmt::format("{}", options.lr)},
      {"weight_decay", fmt::format("{}", options.weight_decay)},
      {"schedule", name_of(options.schedule)},
      {"warmup_steps", fmt::format("{}", options.warmup_steps)},
  };
  if (is_adamw) {
    settings["beta2"] = fmt::format("{}", options.beta2);
    settings["decays_matrices_alone"] =
        fmt::format("{}", options.decays_matrices_alone);
  }
  if (!is_adamw) {
    settings["momentum"] = fmt::format("{}", options.momentum);
    settings["nesterov"] = fmt::format("{}", options.nesterov);
  }
  if (options.schedule == ScheduleKind::kSteps) {
    settings["milestones"] =
        fmt::format("{}", fmt::join(options.milestones, ","));
  }
  if (options.schedule == ScheduleKind::kCosine) {
    settings["final_lr"] = fmt::format("{}", options.final_lr);
    settings[training::kDependsOnTotalSteps] = "true";
  }
  return settings;
}

}  // namespace lockstep::tasks
