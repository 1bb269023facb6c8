#include "lockstep/tasks/optimizer_options.h"

#include <algorithm>
#include <cmath>
#include <numbers>

#include <fmt/format.h>
#include <fmt/ranges.h>

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

/// Returns `parameters` with the matrices first, the order of the state in
/// checkpoints.
std::vector<torch::Tensor> matrices_first(
    std::vector<torch::Tensor> parameters) {
  std::stable_partition(parameters.begin(), parameters.end(), is_matrix);
  return parameters;
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
}

double learning_rate(const OptimizerOptions& options,
                     const training::Position& position) {
  return options.lr * factor(options, position);
}

std::unique_ptr<training::RunOptimizer> make_optimizer(
    const OptimizerOptions& options,
    const std::vector<torch::Tensor>& parameters,
    const optim::StateFactory& make_state) {
  auto schedule = [options](const training::Position& position) {
    return factor(options, position);
  };
  if (options.optimizer == OptimizerKind::kAdamW) {
    auto adamw = optim::AdamWOptions(options.lr)
                     .betas({kBeta1, options.beta2})
                     .weight_decay(options.weight_decay)
                     .make_state(make_state);
    if (!options.decays_matrices_alone) {
      return training::make_run_optimizer(optim::adamw(parameters, adamw),
                                          schedule);
    }
    adamw.decays(is_matrix);
    return training::make_run_optimizer(
        optim::adamw(matrices_first(parameters), adamw), schedule);
  }
  return training::make_run_optimizer(
      optim::sgd(parameters, optim::SGDOptions(options.lr)
                                 .momentum(options.momentum)
                                 .weight_decay(options.weight_decay)
                                 .nesterov(options.nesterov)
                                 .make_state(make_state)),
      schedule);
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
