#include "lockstep/train/state/run_settings.h"

#include <ATen/Context.h>
#include <ATen/Version.h>
#include <c10/core/DeviceType.h>
#include <fmt/format.h>
#include <torch/version.h>

#include "lockstep/base/checksum.h"
#include "lockstep/base/version.h"

namespace lockstep::training {
namespace {

template <class T>
std::string text_of(const T& value) {
  return fmt::format("{}", value);
}

// Returns the setting's text. Checkpoints had "float32" before there was a
// choice.
std::string precision_setting(Precision precision) {
  return precision == Precision::kFloat32 ? "float32" : to_string(precision);
}

// Adds the options that change what is sent. A run that sends everything has
// none.
void add_communication(const TrainOptions& options, const Plan& plan,
                       Settings& settings) {
  const CommunicationOptions& communication = options.communication();
  if (plan.ranks == 1) return;
  if (communication.compression() != GradCompression::kNone) {
    settings["grad_compression"] = to_string(communication.compression());
  }
  if (communication.compression() == GradCompression::kPowerSgd) {
    settings[kPowerSgdRanks] = text_of(plan.ranks);
    settings["powersgd_rank"] = text_of(communication.powersgd_rank());
  }
  if (!communication.is_local()) return;
  settings["ranks"] = text_of(plan.ranks);
  settings["local_steps"] = text_of(communication.local_steps());
  settings["outer_optimizer"] = to_string(communication.outer_optimizer());
  settings["outer_lr"] = text_of(communication.outer_lr().value_or(0));
  settings["outer_momentum"] = text_of(communication.outer_momentum());
}

void add_spikes(const TrainOptions& options, Settings& settings) {
  if (options.spikes().action() == OnSpike::kNothing) return;
  settings["on_spike"] = to_string(options.spikes().action());
  settings["spike_sigma"] = fmt::format("{}", options.spikes().sigma());
  settings["spike_window"] = fmt::format("{}", options.spikes().window());
  // A spike rolls back to a checkpoint.
  if (options.spikes().action() == OnSpike::kRollBack) {
    settings["checkpoint_every"] =
        fmt::format("{}", options.checkpoint().every());
  }
}

}  // namespace

Settings settings_of(const Task& task, const TrainOptions& options,
                     const Plan& plan, int64_t total_steps,
                     const std::string& data_sha256) {
  const bool is_classic = options.strategy() == Strategy::kDataParallelClassic;
  Settings settings = task.settings();
  settings.insert({
      {"seed", text_of(options.seed())},
      {"shards", text_of(plan.shards)},
      {"intra_op_threads", text_of(plan.intra_op_threads)},
      {"precision", precision_setting(options.precision())},
      {"reduction", is_classic ? "nn.DataParallel" : "tree over shards"},
      {"batch_size", text_of(options.batch_size())},
      {"shuffle", text_of(options.loading().shuffle())},
      {"drop_last", text_of(options.loading().drop_last())},
      {kDataSha256, data_sha256},
      {"clip_grad_norm", text_of(options.clip_grad_norm())},
      {kTotalSteps, text_of(total_steps)},
  });
  add_communication(options, plan, settings);
  add_spikes(options, settings);
  return settings;
}

std::string setting_of(const CheckpointInfo& info, const std::string& name) {
  if (!info.run) return "";
  const auto found = info.run->settings.find(name);
  return found == info.run->settings.end() ? "" : found->second;
}

Precision precision_of(const CheckpointInfo& info) {
  const std::string name = setting_of(info, "precision");
  return name.empty() || name == precision_setting(Precision::kFloat32)
             ? Precision::kFloat32
             : parse_precision(name);
}

std::string identity_of_run(const Task& task,
                            const std::vector<std::string>& command,
                            int number) {
  std::string text =
      fmt::format("run {} of {}", number, task.model().at("name"));
  for (const auto& word : command) text += '\0' + word;
  return checksum_of(text);
}

Settings versions_of(const Plan& plan) {
  const Device& device = plan.devices.front();
  return {{"lockstep", kVersion},
          {"torch", TORCH_VERSION},
          {"device", c10::DeviceTypeName(device.type, /*lower_case=*/true)},
          {"cpu", at::get_cpu_capability()}};
}

}  // namespace lockstep::training
