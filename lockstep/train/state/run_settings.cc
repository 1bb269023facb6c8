#include "lockstep/train/state/run_settings.h"

#include <ATen/Context.h>
#include <ATen/Version.h>
#include <c10/core/DeviceType.h>
#include <fmt/format.h>
#include <torch/version.h>

#include "lockstep/base/checksum.h"
#include "lockstep/base/version.h"
#include "lockstep/train/option_table.h"

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

// Returns the options as the run uses them: with what the plan chose, and
// without what only several ranks need.
TrainOptions options_in_use(const TrainOptions& options, const Plan& plan) {
  TrainOptions used = options;
  used.shards(plan.shards).intra_op_threads(plan.intra_op_threads);
  if (plan.ranks == 1) used.communication(CommunicationOptions());
  return used;
}

}  // namespace

Settings settings_of(const Task& task, const TrainOptions& options,
                     const Plan& plan, int64_t total_steps,
                     const std::string& data_sha256) {
  const bool is_classic = options.strategy() == Strategy::kDataParallelClassic;
  TrainOptions used = options_in_use(options, plan);
  const CommunicationOptions& communication = used.communication();
  Settings settings = task.settings();
  settings.insert({
      {"precision", precision_setting(used.precision())},
      {"reduction", is_classic ? "nn.DataParallel" : "tree over shards"},
      {kDataSha256, data_sha256},
      {kTotalSteps, text_of(total_steps)},
  });
  if (communication.is_local()) {
    settings["ranks"] = text_of(plan.ranks);
    settings["outer_lr"] = text_of(communication.outer_lr().value_or(0));
  }
  if (communication.compression() == GradCompression::kPowerSgd) {
    settings[kPowerSgdRanks] = text_of(plan.ranks);
  }
  for (const Option& option : option_table(used)) {
    if (!option.changes_bits) continue;
    settings.insert({key_of(option), value_text(option)});
  }
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
