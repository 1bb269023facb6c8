#include <memory>
#include <optional>

#include <fmt/format.h>

#include "lockstep/base/format.h"
#include "lockstep/base/json.h"
#include "lockstep/base/numbers.h"
#include "lockstep/cli/command_options.h"
#include "lockstep/cli/embed/run_flags.h"
#include "lockstep/cli/model_family.h"
#include "lockstep/cli/progress_line.h"
#include "lockstep/cli/start/add_option.h"
#include "lockstep/cli/start/checks.h"
#include "lockstep/cli/start/program.h"
#include "lockstep/device/memory.h"
#include "lockstep/tools/commands/commands.h"
#include "lockstep/tools/measurement/memory_plan.h"
#include "lockstep/train/option_table.h"

namespace lockstep::cli {
namespace {

constexpr double kGiB = 1024.0 * 1024 * 1024;
constexpr size_t kMaxChoices = 6;

struct PlanFlags {
  explicit PlanFlags(const std::vector<MakeFamily>& made) : families(made) {}

  ModelFamilies families;
  std::string model = "resnet18";
  training::TrainOptions train;
  std::string devices = "1";
  std::string optimizer;
  /// Folder or checkpoint with the model's sizes. If empty, --model has them.
  std::string init_from;
  bool between_hosts = false;
  double memory_gib = 0;
  bool as_json = false;
};

/// Parses the devices. A number means that many devices, which need not exist
/// on this machine.
std::vector<Device> planned_devices(const std::string& text) {
  const auto count = parse_number<int>(text);
  if (!count) return devices(text);
  if (*count < 1 || *count > kMaxSlices) {
    throw BadUsage(fmt::format("[usage] --devices takes 1 to {}, got {}",
                               kMaxSlices, text));
  }
  std::vector<Device> all;
  for (int i = 0; i < *count; ++i) {
    all.push_back({.type = c10::kCPU, .index = i, .slices = *count});
  }
  return all;
}

/// Returns the family of --init-from or else of --model.
ModelFamily& choose_family(const PlanFlags& flags) {
  if (flags.init_from.empty()) return flags.families.of_model(flags.model);
  for (const auto& family : flags.families) {
    if (family->begin_with(flags.init_from)) return *family;
  }
  throw BadUsage(
      "[usage] --init-from needs a language model: a Hugging Face folder, a "
      "checkpoint or the --out-dir of a run, got " +
      flags.init_from);
}

tools::TimedRun to_run(const CLI::App& app, const PlanFlags& flags) {
  tools::TimedRun run{.train = flags.train};
  run.train.devices(planned_devices(flags.devices));
  if (!is_given(app, "--strategy")) {
    run.train.strategy(
        choose_strategy(flags.between_hosts, run.train.devices().size()));
  }
  const bool is_single = run.train.strategy() == training::Strategy::kSingle;
  if (is_single && run.train.devices().size() > 1) {
    throw BadUsage(
        fmt::format("[usage] --strategy single trains on one device, got "
                    "--devices {}; use --strategy dp, or leave out --strategy",
                    flags.devices));
  }
  if (flags.train.zero() != ZeroStage::kNone && !flags.between_hosts) {
    throw BadUsage(
        "[usage] --zero splits what ranks on several hosts hold; add "
        "--strategy ddp --between-hosts, or leave out --zero: the devices of "
        "one host share one copy");
  }
  const ModelFamily& family = choose_family(flags);
  flags.families.refuse_others(app, family, "", "--model " + flags.model);
  tasks::OptimizerOptions optimizer{
      .optimizer = family.optimizer_defaults().optimizer, .lr = 1e-3};
  if (!flags.optimizer.empty()) {
    optimizer.optimizer = flags.optimizer == "adamw"
                              ? tasks::OptimizerKind::kAdamW
                              : tasks::OptimizerKind::kSgd;
  }
  run.work = family.make_workload(flags.model, optimizer);
  return run;
}

std::string in_bytes(int64_t bytes) {
  return format_bytes(static_cast<double>(bytes));
}

void print_text(const tools::MemoryPlan& plan, const PlanFlags& flags) {
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
                              : "not run, because it is large: its figure is "
                                "an estimate from shards of one and two "
                                "samples");
  const bool fits = plan.total() <= plan.limit;
  fmt::print("{}\n", fits ? "It fits." : "It does not fit.");
  size_t shown = 0;
  for (const auto& choice : plan.choices) {
    if (!fits && !choice.fits) continue;
    if (shown++ == 0) fmt::print("\nWith these options it would take\n");
    if (shown > kMaxChoices) break;
    fmt::print("  {:<44} {:>10}\n", choice.options, in_bytes(choice.total));
  }
  if (!fits && shown == 0) {
    fmt::print(
        "No --accumulate{} makes it fit: use a smaller model or context, or "
        "devices of more hosts.\n",
        plan.can_recompute ? " or --recompute" : "");
  }
}

void print_json(const tools::MemoryPlan& plan) {
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

void run(const CLI::App& app, const PlanFlags& flags) {
  const bool shares_memory = !flags.between_hosts;
  const auto plan = [&] {
    ProgressLine line("plan");
    return tools::make_memory_plan(
        to_run(app, flags), static_cast<int64_t>(flags.memory_gib * kGiB),
        shares_memory, [&line](int64_t samples) {
          line.show("running a shard of " + counted(samples, "sample"));
        });
  }();
  flags.as_json ? print_json(plan) : print_text(plan, flags);
}

std::vector<Option> plan_options(PlanFlags& flags) {
  training::TrainOptions& train = flags.train;
  Option strategy = train_option(
      "--strategy", named(train.strategy(), training::parse_strategy),
      "single, dp or ddp");
  strategy.default_text = "single; several --devices: dp; --between-hosts: ddp";
  strategy.words = {"single", "dp", "ddp"};
  return {
      {.name = "--init-from",
       .value = &flags.init_from,
       .help = "plan for the model in this Hugging Face folder, checkpoint or "
               "--out-dir of a run",
       .type = "DIR",
       .default_text = "none"},
      strategy,
      {.name = "--devices",
       .value = &flags.devices,
       .help = "number of devices, which need not exist here",
       .type = "N|LIST"},
      {.name = "--between-hosts",
       .value = &flags.between_hosts,
       .help = "ddp: each rank is on its own host, with its own parameters and "
               "optimizer state"},
      train_option("--zero", training::stage_value(train.zero()),
                   "ddp between hosts: 1 splits the optimizer state among the "
                   "ranks, 2 also the gradients"),
      train_option("--batch-size", &train.batch_size()),
      train_option("--accumulate", &train.accumulate(),
                   "micro-batches per device"),
      train_option("--precision",
                   named(train.precision(), training::parse_precision),
                   "fp32, bf16 or fp16"),
      {.name = "--optimizer",
       .value = &flags.optimizer,
       .help = "sgd or adamw",
       .default_text = flags.families.default_optimizer(),
       .words = {"sgd", "adamw"}},
      {.name = "--memory",
       .value = &flags.memory_gib,
       .help = "GiB available to all devices together",
       .default_text = "what this host has available",
       .range = at_least(0)},
      {.name = "--json", .value = &flags.as_json, .help = "print JSON"},
  };
}

}  // namespace

void add_plan(CLI::App& app, const std::vector<MakeFamily>& families) {
  auto* command =
      add_command(app, "plan", "Estimate the memory that a training run needs");
  auto flags = std::make_shared<PlanFlags>(families);
  add_option(*command, flags->families.model_option(flags->model));
  add_options(*command, flags->families.options(OptionKind::kModel));
  add_options(*command, plan_options(*flags));
  command->get_option("--init-from")->excludes("--model");
  command->footer(
      "Shards of one and two samples are run on this machine, and one shard of "
      "the batch if that takes seconds and there is enough memory. The dataset "
      "is not counted.\n\n"
      "Example:\n"
      "  lockstep plan --model resnet18 --batch-size 256 --devices 2");
  command->callback([flags, command] { run(*command, *flags); });
}

}  // namespace lockstep::cli
