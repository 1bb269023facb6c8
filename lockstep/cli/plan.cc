#include <charconv>
#include <memory>
#include <optional>

#include <fmt/format.h>

#include "lockstep/base/json.h"
#include "lockstep/base/table.h"
#include "lockstep/base/terminal.h"
#include "lockstep/cli/commands.h"
#include "lockstep/cli/embed/run_options.h"
#include "lockstep/cli/options.h"
#include "lockstep/cli/start/checks.h"
#include "lockstep/cli/start/number_option.h"
#include "lockstep/cli/start/program.h"
#include "lockstep/device/memory.h"
#include "lockstep/report/measurement/memory_plan.h"
#include "lockstep/tasks/text/model_choice.h"

namespace lockstep::cli {
namespace {

constexpr double kGiB = 1024.0 * 1024 * 1024;
constexpr size_t kMostChoices = 6;

struct PlanFlags {
  ModelFlags model{.model = "gpt2"};
  LanguageModelFlags language;
  train::TrainOptions train;
  std::string devices = "1";
  std::string strategy;  ///< empty: chosen by the devices
  std::string precision = "fp32";
  std::string optimizer;
  /// Folder or checkpoint with the model's sizes. If empty, --model has them.
  std::string init_from;
  bool between_hosts = false;
  int zero = 0;
  double memory_gib = 0;
  bool as_json = false;
};

/// Parses the devices. A number means that many devices, which need not exist
/// on this machine.
std::vector<Device> planned_devices(const std::string& text) {
  int count = 0;
  const auto [end, error] =
      std::from_chars(text.data(), text.data() + text.size(), count);
  if (error != std::errc() || end != text.data() + text.size()) {
    return devices(text);
  }
  if (count < 1 || count > kMaxSlices) {
    throw BadUsage(fmt::format("[usage] --devices takes 1 to {}, got {}",
                               kMaxSlices, text));
  }
  std::vector<Device> all;
  for (int i = 0; i < count; ++i) {
    all.push_back({.kind = DeviceKind::kCpu, .index = i, .slices = count});
  }
  return all;
}

/// Returns the model of --init-from, if that is given.
std::optional<models::LanguageModelSpec> find_model(const PlanFlags& flags) {
  if (flags.init_from.empty()) return std::nullopt;
  const auto saved = tasks::find_saved_model(flags.init_from);
  if (!saved) {
    throw BadUsage(
        "[usage] --init-from needs a language model: a Hugging Face folder, a "
        "checkpoint or the --out-dir of a run, got " +
        flags.init_from);
  }
  return tasks::choose_model(
      {.context = flags.language.context,
       .dropout = flags.language.dropout,
       .recomputes_activations = flags.language.recompute},
      saved);
}

report::TimedRun to_run(const PlanFlags& flags) {
  report::TimedRun run{.train = flags.train, .task = {}};
  run.train.devices(planned_devices(flags.devices));
  run.train.strategy(choose_strategy(flags.strategy, flags.between_hosts,
                                     run.train.devices().size()));
  run.train.precision(train::parse_precision(flags.precision));
  run.train.zero(static_cast<ZeroStage>(flags.zero));
  const bool is_single = run.train.strategy() == train::Strategy::kSingle;
  if (is_single && run.train.devices().size() > 1) {
    throw BadUsage(
        fmt::format("[usage] --strategy single trains on one device, got "
                    "--devices {}; use --strategy dp, or leave out --strategy",
                    flags.devices));
  }
  if (flags.zero > 0 && !flags.between_hosts) {
    throw BadUsage(
        "[usage] --zero splits what ranks on several hosts hold; add "
        "--strategy ddp --between-hosts, or leave out --zero: the devices of "
        "one host share one copy");
  }
  const auto saved = find_model(flags);
  const bool is_language = saved || is_language_model(flags.model);
  const bool is_adamw =
      flags.optimizer.empty() ? is_language : flags.optimizer == "adamw";
  const tasks::OptimizerOptions optimizer{
      .optimizer =
          is_adamw ? tasks::OptimizerKind::kAdamW : tasks::OptimizerKind::kSgd,
      .lr = 1e-3};
  if (is_language) {
    run.task = tasks::TextOptions{
        .model = saved ? *saved
                       : to_language_model_spec(flags.model, flags.language),
        .data = {},
        .optimizer = optimizer};
  } else {
    run.task = tasks::ImageOptions{.model = to_model_spec(flags.model),
                                   .data = {},
                                   .optimizer = optimizer};
  }
  return run;
}

std::string in_bytes(int64_t bytes) {
  return format_bytes(static_cast<double>(bytes));
}

void print_text(const report::MemoryPlan& plan, const PlanFlags& flags) {
  fmt::print("{} ({}), batch of {}: {} of {}\n\n", plan.model,
             counted(plan.parameters, "parameter"), flags.train.batch_size(),
             counted(plan.shards, "shard"),
             counted(plan.samples_of_shard, "sample"));
  const auto& device = plan.device;
  const auto line = [](const char* what, int64_t bytes) {
    if (bytes > 0) fmt::print("  {:<44} {:>10}\n", what, in_bytes(bytes));
  };
  if (plan.shared > 0) {
    fmt::print("Once for all devices\n");
    line("parameters and optimizer", plan.shared);
  }
  fmt::print("Each of {}\n", counted(plan.devices, "device"));
  line("parameters", device.parameters);
  line("optimizer", device.optimizer);
  line("gradients that wait for other shards", device.gradients);
  line("buffers to send gradients", device.buckets);
  line("one shard: activations, gradients, casts", device.activations);
  fmt::print("Together\n");
  line("peak in a step", plan.total());
  line("available", plan.limit);
  fmt::print("\nThe shard was {}.\n",
             plan.is_measured ? "run on this machine"
                              : "too large to run here, so its figure is an "
                                "estimate from shards of one and two samples");
  const bool fits = plan.total() <= plan.limit;
  fmt::print("{}\n", fits ? "It fits." : "It does not fit.");
  size_t shown = 0;
  for (const auto& choice : plan.choices) {
    if (!fits && !choice.fits) continue;
    if (shown++ == 0) fmt::print("\nWith these options it would take\n");
    if (shown > kMostChoices) break;
    fmt::print("  {:<44} {:>10}\n", choice.options, in_bytes(choice.total));
  }
  if (!fits && shown == 0) {
    fmt::print(
        "No --accumulate{} makes it fit: use a smaller model or context, or "
        "devices of more hosts.\n",
        is_language_model(flags.model) ? " or --recompute" : "");
  }
}

void print_json(const report::MemoryPlan& plan) {
  nlohmann::ordered_json choices = nlohmann::ordered_json::array();
  for (const auto& choice : plan.choices) {
    choices.push_back({{"options", choice.options},
                       {"total_bytes", choice.total},
                       {"fits", choice.fits}});
  }
  const nlohmann::ordered_json object = {
      {"model", plan.model},
      {"parameters", plan.parameters},
      {"devices", plan.devices},
      {"shards", plan.shards},
      {"samples_of_shard", plan.samples_of_shard},
      {"shared_bytes", plan.shared},
      {"device",
       {{"parameter_bytes", plan.device.parameters},
        {"optimizer_bytes", plan.device.optimizer},
        {"gradient_bytes", plan.device.gradients},
        {"bucket_bytes", plan.device.buckets},
        {"shard_bytes", plan.device.activations},
        {"total_bytes", plan.device.total()}}},
      {"total_bytes", plan.total()},
      {"limit_bytes", plan.limit},
      {"is_measured", plan.is_measured},
      {"choices", choices}};
  fmt::print("{}\n", object.dump(2));
}

void run(const PlanFlags& flags) {
  const bool shares_memory = !flags.between_hosts;
  const auto plan = report::make_memory_plan(
      to_run(flags), static_cast<int64_t>(flags.memory_gib * kGiB),
      shares_memory);
  flags.as_json ? print_json(plan) : print_text(plan, flags);
}

}  // namespace

void add_plan(CLI::App& app) {
  auto* command =
      add_command(app, "plan", "Estimate the memory that a training run needs");
  auto flags = std::make_shared<PlanFlags>();
  add_any_model_options(*command, flags->model, flags->language);
  command
      ->add_option("--init-from", flags->init_from,
                   "plan for the model in this Hugging Face folder, checkpoint "
                   "or --out-dir of a run")
      ->type_name("DIR")
      ->default_str("none")
      ->excludes(command->get_option("--model"));
  command->add_option("--strategy", flags->strategy, "single, dp or ddp")
      ->type_name("NAME")
      ->default_str("single; several --devices: dp; --between-hosts: ddp")
      ->check(one_of({"single", "dp", "ddp"}));
  command
      ->add_option("--devices", flags->devices,
                   "number of devices, which need not exist here")
      ->type_name("N|LIST");
  command->add_flag("--between-hosts", flags->between_hosts,
                    "ddp: each rank is on its own host, with its own "
                    "parameters and optimizer state [no]");
  command
      ->add_option("--zero", flags->zero,
                   "ddp between hosts: 1 splits the optimizer state among the "
                   "ranks, 2 also the gradients")
      ->type_name("N")
      ->check(whole_number(0, 2));
  command
      ->add_option("--batch-size", flags->train.batch_size(),
                   "samples per step, over all devices")
      ->type_name("N")
      ->check(whole_number(1));
  command
      ->add_option("--accumulate", flags->train.accumulate(),
                   "micro-batches per device")
      ->type_name("N")
      ->check(whole_number(1, 4096));
  command->add_option("--precision", flags->precision, "fp32, bf16 or fp16")
      ->type_name("NAME")
      ->check(one_of(train::precision_names()));
  command->add_option("--optimizer", flags->optimizer, "sgd or adamw")
      ->type_name("NAME")
      ->default_str("sgd; language models: adamw")
      ->check(one_of({"sgd", "adamw"}));
  add_number(*command, "--memory", flags->memory_gib,
             "GiB available to all devices together")
      ->type_name("X")
      ->default_str("what this host has available")
      ->check(number(0));
  command->add_flag("--json", flags->as_json, "print JSON [no]");
  command->footer(
      "One shard of the batch is run on this machine if it has enough memory. "
      "The dataset is not counted.\n\n"
      "Example:\n"
      "  lockstep plan --model gpt2 --batch-size 8 --devices 2");
  command->callback([flags] { run(*flags); });
}

}  // namespace lockstep::cli
