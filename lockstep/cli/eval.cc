#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include <fmt/format.h>
#include <fmt/ranges.h>

#include "lockstep/base/error.h"
#include "lockstep/base/format.h"
#include "lockstep/base/json.h"
#include "lockstep/base/stopwatch.h"
#include "lockstep/checkpoint/checkpoint.h"
#include "lockstep/cli/command_options.h"
#include "lockstep/cli/commands.h"
#include "lockstep/cli/embed/device_options.h"
#include "lockstep/cli/embed/run_flags.h"
#include "lockstep/cli/model_family.h"
#include "lockstep/cli/progress_line.h"
#include "lockstep/cli/start/add_option.h"
#include "lockstep/cli/start/checks.h"
#include "lockstep/cli/start/program.h"
#include "lockstep/train/state/run_settings.h"

namespace lockstep::cli {
namespace {

struct EvalFlags {
  explicit EvalFlags(const std::vector<MakeFamily>& made) : families(made) {}

  ModelFamilies families;
  std::string data;  ///< empty: that of the checkpoint
  DeviceFlags devices;
  training::Precision precision{};
  std::string checkpoint;
  std::optional<int64_t> batch_size;
  int workers = 1;
  bool as_json = false;
};

void print_json(const EvalResult& result, training::Precision precision) {
  using Json = nlohmann::ordered_json;
  const Json object = {{"checkpoint", result.checkpoint},
                       {"model", result.info.model.at("name")},
                       {"step", result.info.step},
                       {"precision", training::to_string(precision)},
                       {"test", result.figures},
                       {"total_time_s", result.seconds},
                       {"parameter_sha256", result.info.parameter_sha256}};
  // The name of a folder need not be valid UTF-8.
  fmt::print("{}\n", object.dump(2, ' ', /*ensure_ascii=*/true,
                                 Json::error_handler_t::replace));
}

void print_text(const EvalResult& result, training::Precision precision) {
  fmt::print("{} from {} (step {}), on {}{}\n", result.info.model.at("name"),
             result.checkpoint, result.info.step, result.data,
             precision == training::Precision::kFloat32
                 ? ""
                 : ", in " + training::to_string(precision));
  fmt::print("{}\n", fmt::join(result.lines, "\n"));
}

// Returns the precision that was asked for, or else that of the run, which
// evaluated in it.
training::Precision choose_precision(const CLI::App& app,
                                     const EvalFlags& flags,
                                     const CheckpointInfo& info) {
  return is_given(app, "--precision") ? flags.precision
                                      : training::precision_of(info);
}

// Returns the family that made a checkpoint.
ModelFamily& family_of(const EvalFlags& flags, const std::string& checkpoint,
                       const CheckpointInfo& info) {
  for (const auto& family : flags.families) {
    if (family->owns(info)) return *family;
  }
  const auto found = info.model.find("name");
  const std::string name = found == info.model.end() ? "" : found->second;
  throw CheckpointError(
      {.code = ErrorCode::kUnknownName,
       .what = checkpoint + " has a model that `lockstep eval` can't build",
       .expected = fmt::format("{}", fmt::join(flags.families.models(), ", ")),
       .got = name.empty() ? "a model without a name" : name.substr(0, 60),
       .fix = "evaluate it with the program that trained it"});
}

// Shows how far an evaluation is.
std::function<void(int64_t, int64_t)> show_batches(ProgressLine& line) {
  return [&line, watch = Stopwatch()](int64_t done, int64_t total) {
    line.show(fmt::format("batch {} of {}{}", done + 1, total,
                          time_left_text(done, total, watch.seconds())));
  };
}

void run(const CLI::App& app, const EvalFlags& flags) {
  if (flags.checkpoint.empty()) {
    throw BadUsage(
        "[usage] eval needs --checkpoint DIR: a checkpoint, or the --out-dir "
        "of a run");
  }
  EvalChoice choice{.checkpoint = flags.checkpoint, .info = {}};
  const ModelFamily* family = nullptr;
  for (const auto& candidate : flags.families) {
    if (candidate->has_model(flags.checkpoint)) family = candidate.get();
  }
  if (family == nullptr) {
    choice.checkpoint = find_checkpoint(flags.checkpoint);
    choice.info = read_checkpoint_info(choice.checkpoint);
    family = &family_of(flags, choice.checkpoint, choice.info);
  }
  flags.families.refuse_others(app, *family, flags.data,
                               "a model for " + family->name());
  choice.data = flags.data;
  choice.devices = to_devices(flags.devices, "all");
  choice.batch_size = flags.batch_size;
  choice.loader_workers = flags.workers;
  choice.precision = choose_precision(app, flags, choice.info);
  const EvalResult result = [&] {
    ProgressLine line("eval");
    choice.on_batch = show_batches(line);
    return family->evaluate(choice);
  }();
  flags.as_json ? print_json(result, choice.precision)
                : print_text(result, choice.precision);
}

std::vector<Option> evaluation_options(EvalFlags& flags) {
  const auto batch_text = [](const ModelFamily& family) {
    return fmt::format("{}", family.eval_batch_size());
  };
  Option precision = train_option(
      "--precision", named(flags.precision, training::parse_precision),
      "fp32, bf16 or fp16");
  precision.default_text = "that of the run, in which it evaluated, too";
  Option batch_size = train_option("--batch-size", &flags.batch_size,
                                   "samples per batch, over all devices");
  batch_size.default_text = flags.families.default_text(
      batch_text(**flags.families.begin()), batch_text);
  return {precision,
          batch_size,
          train_option("--workers", &flags.workers,
                       "threads that prepare batches; 0: the main thread "
                       "prepares them"),
          {.name = "--json", .value = &flags.as_json, .help = "print JSON"}};
}

}  // namespace

void add_eval(CLI::App& app, const std::vector<MakeFamily>& made) {
  auto* command =
      add_command(app, "eval", "Evaluate a checkpoint on the test split");
  auto flags = std::make_shared<EvalFlags>(made);
  const ModelFamilies& families = flags->families;
  add_option(*command, checkpoint_option(flags->checkpoint));
  add_option(*command,
             families.data_option(flags->data, "that of the checkpoint"));
  add_options(*command, families.options(OptionKind::kData));
  add_options(*command, device_options(flags->devices, "all"));
  add_options(*command, families.options(OptionKind::kLayout));
  add_options(*command, evaluation_options(*flags));
  command->callback([flags, command] { run(*command, *flags); });
}

}  // namespace lockstep::cli
