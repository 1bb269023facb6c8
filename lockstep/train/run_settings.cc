#include "lockstep/train/run_settings.h"

#include <filesystem>

#include <ATen/Context.h>
#include <ATen/Version.h>
#include <fmt/format.h>
#include <fmt/ranges.h>
#include <torch/version.h>

#include "lockstep/base/checksum.h"
#include "lockstep/base/version.h"

namespace lockstep::train {
namespace {

const char* name_of(OptimizerKind kind) {
  return kind == OptimizerKind::kAdamW ? "adamw" : "sgd";
}

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

template <class T>
std::string text_of(const T& value) {
  return fmt::format("{}", value);
}

}  // namespace

Settings settings_of(const TrainOptions& options, const Plan& plan,
                     int64_t total_steps, const std::string& data_sha256) {
  const bool is_classic = options.strategy == Strategy::kDataParallelClassic;
  Settings settings{
      {"seed", text_of(options.seed)},
      {"shards", text_of(plan.shards)},
      {"intra_op_threads", text_of(plan.intra_op_threads)},
      {"channels_last", text_of(plan.channels_last)},
      {"precision", "float32"},
      {"reduction", is_classic ? "nn.DataParallel" : "tree over shards"},
      {"batch_size", text_of(options.batch_size)},
      {"augment", text_of(options.augment)},
      {"data", options.data.name},
      {"data_sha256", data_sha256},
      {"optimizer", name_of(options.optimizer)},
      {"lr", text_of(options.lr)},
      {"weight_decay", text_of(options.weight_decay)},
      {"clip_grad_norm", text_of(options.clip_grad_norm)},
      {"schedule", name_of(options.schedule)},
      {"warmup_steps", text_of(options.warmup_steps)},
      {kTotalSteps, text_of(total_steps)},
  };
  if (!options.data.dir.empty()) {
    settings[kDataDir] = std::filesystem::absolute(options.data.dir).string();
  }
  if (options.optimizer == OptimizerKind::kSgd) {
    settings["momentum"] = text_of(options.momentum);
    settings["nesterov"] = text_of(options.nesterov);
  }
  if (options.schedule == ScheduleKind::kSteps) {
    settings["milestones"] =
        fmt::format("{}", fmt::join(options.milestones, ","));
  }
  return settings;
}

std::string identity_of_run(const TrainOptions& options, int number) {
  std::string text = fmt::format("run {} of {}", number, options.model.name);
  for (const auto& word : options.command) text += '\0' + word;
  return checksum_of(text);
}

Settings versions_of(const Plan& plan) {
  const Device& device = plan.devices.front();
  return {{"lockstep", kVersion},
          {"torch", TORCH_VERSION},
          {"device", device.is_cpu() ? "cpu" : "cuda"},
          {"cpu", at::get_cpu_capability()}};
}

}  // namespace lockstep::train
