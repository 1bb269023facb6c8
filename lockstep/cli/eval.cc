#include <algorithm>
#include <cmath>
#include <cstdint>
#include <functional>
#include <memory>
#include <optional>

#include <fmt/format.h>
#include <fmt/ranges.h>

#include "lockstep/base/error.h"
#include "lockstep/base/format.h"
#include "lockstep/base/json.h"
#include "lockstep/base/stopwatch.h"
#include "lockstep/checkpoint/checkpoint.h"
#include "lockstep/checkpoint/hugging_face.h"
#include "lockstep/cli/command_options.h"
#include "lockstep/cli/commands.h"
#include "lockstep/cli/progress_line.h"
#include "lockstep/cli/start/add_option.h"
#include "lockstep/cli/start/checks.h"
#include "lockstep/cli/start/program.h"
#include "lockstep/models/model_settings.h"
#include "lockstep/tasks/images/evaluate_images.h"
#include "lockstep/tasks/text/text_checkpoint.h"
#include "lockstep/train/state/run_settings.h"

namespace lockstep::cli {
namespace {

struct EvalFlags {
  DataFlags data;
  DeviceFlags devices;
  std::string channels_last = "auto";
  std::string precision;  ///< empty: that of the checkpoint
  std::string checkpoint;
  std::optional<int64_t> batch_size;
  int workers = 1;
  bool as_json = false;
};

using Json = nlohmann::ordered_json;

Json figures_of(const tasks::EvalReport& report) {
  return {{"loss", report.test.metrics.at("loss")},
          {"accuracy", report.test.metrics.at("accuracy")},
          {"samples", report.test.samples}};
}

Json figures_of(const tasks::TextEvalReport& report) {
  const double loss = report.test.metrics.at("loss");
  return {{"loss", loss},
          {"perplexity", std::exp(loss)},
          {"samples", report.test.samples},
          {"tokens", report.tokens}};
}

template <class Report>
void print_json(const Report& report, training::Precision precision) {
  const Json object = {{"checkpoint", report.checkpoint},
                       {"model", report.info.model.at("name")},
                       {"step", report.info.step},
                       {"precision", training::to_string(precision)},
                       {"test", figures_of(report)},
                       {"total_time_s", report.seconds},
                       {"parameter_sha256", report.info.parameter_sha256}};
  // The name of a folder need not be valid UTF-8.
  fmt::print("{}\n", object.dump(2, ' ', /*ensure_ascii=*/true,
                                 Json::error_handler_t::replace));
}

// Returns ", in bf16", or "" for the usual precision.
std::string precision_text(training::Precision precision) {
  return precision == training::Precision::kFloat32
             ? ""
             : ", in " + training::to_string(precision);
}

void print_text(const tasks::EvalReport& report, const data::DataSpec& data,
                training::Precision precision) {
  fmt::print("{} from {} (step {}), on the test split of {}{}{}\n",
             report.info.model.at("name"), report.checkpoint, report.info.step,
             data.name, data.dir.empty() ? "" : " in " + data.dir,
             precision_text(precision));
  fmt::print("Test Loss: {}\nTest Acc: {:.4f}%\nSamples: {}\n",
             format_number(report.test.metrics.at("loss")),
             100 * report.test.metrics.at("accuracy"), report.test.samples);
}

void print_text(const tasks::TextEvalReport& report,
                const tasks::TextSpec& data, training::Precision precision) {
  const double loss = report.test.metrics.at("loss");
  fmt::print("{} from {} (step {}), on the last {:g} % of {}{}\n",
             report.info.model.at("name"), report.checkpoint, report.info.step,
             100 * data.validation_fraction, data.file,
             precision_text(precision));
  fmt::print("Test Loss: {}\nPerplexity: {}\nTokens: {}\n", format_number(loss),
             format_number(std::exp(loss)), report.tokens);
}

// Returns the precision that was asked for, or else that of the run, which
// evaluated in it.
training::Precision choose_precision(const EvalFlags& flags,
                                     const CheckpointInfo& info) {
  if (!flags.precision.empty())
    return training::parse_precision(flags.precision);
  return training::precision_of(info);
}

void check_model(const std::string& checkpoint, const CheckpointInfo& info) {
  const auto found = info.model.find("name");
  const std::string name = found == info.model.end() ? "" : found->second;
  auto known = models::names();
  if (std::ranges::count(known, name) > 0) return;
  known.push_back("the language models");
  throw CheckpointError(
      {.code = ErrorCode::kUnknownName,
       .what = checkpoint + " has a model that `lockstep eval` can't build",
       .expected = fmt::format("{}", fmt::join(known, ", ")),
       .got = name.empty() ? "a model without a name" : name.substr(0, 60),
       .fix = "evaluate it with the program that trained it"});
}

// Returns the data of the checkpoint, unless other data was given.
data::DataSpec choose_data(const DataFlags& flags, const CheckpointInfo& info) {
  const bool is_known = info.run && info.run->settings.contains("data");
  if (!flags.data.empty() && !is_known) return to_data_spec(flags);
  DataFlags named = flags;
  const auto spec = tasks::data_of(info);
  if (named.data.empty()) {
    named.data = spec.name;
    if (named.dir.empty()) named.dir = spec.dir;
  }
  if (named.data == "image-folder" && spec.name == named.data &&
      !named.image_size) {
    named.image_size = spec.image_size;
  }
  return to_data_spec(named);
}

// Returns the text of the checkpoint, except for the given options.
tasks::TextSpec choose_text(const DataFlags& flags,
                            const CheckpointInfo& info) {
  if (!flags.file.empty()) return to_text_spec(flags);
  auto spec = tasks::text_of(info);
  DataFlags named = flags;
  named.file = spec.file;
  const auto given = to_text_spec(named);
  if (flags.validation_fraction) {
    spec.validation_fraction = given.validation_fraction;
  }
  return spec;
}

// Shows how far an evaluation is.
std::function<void(int64_t, int64_t)> show_batches(ProgressLine& line) {
  return [&line, watch = Stopwatch()](int64_t done, int64_t total) {
    line.show(fmt::format("batch {} of {}{}", done + 1, total,
                          time_left_text(done, total, watch.seconds())));
  };
}

void eval_text(const EvalFlags& flags, const std::string& checkpoint,
               const CheckpointInfo& info) {
  if (flags.data.tokenizer) {
    throw BadUsage(
        "[usage] eval takes no --tokenizer; leave it out: the checkpoint has "
        "its own");
  }
  tasks::TextEvalOptions options;
  options.checkpoint = checkpoint;
  options.data = choose_text(flags.data, info);
  options.devices = to_devices(flags.devices, "all");
  options.precision = choose_precision(flags, info);
  options.batch_size = flags.batch_size.value_or(options.batch_size);
  options.loader_workers = flags.workers;
  const auto report = [&] {
    ProgressLine line("eval");
    options.on_batch = show_batches(line);
    return tasks::evaluate_text(options);
  }();
  flags.as_json ? print_json(report, options.precision)
                : print_text(report, options.data, options.precision);
}

void run(const EvalFlags& flags) {
  if (flags.checkpoint.empty()) {
    throw BadUsage(
        "[usage] eval needs --checkpoint DIR: a checkpoint, or the --out-dir "
        "of a run");
  }
  if (is_hugging_face(flags.checkpoint)) {
    return eval_text(flags, flags.checkpoint, CheckpointInfo());
  }
  const std::string checkpoint = find_checkpoint(flags.checkpoint);
  const auto info = read_checkpoint_info(checkpoint);
  if (tasks::is_of_text(info)) return eval_text(flags, checkpoint, info);
  tasks::EvalOptions options;
  options.checkpoint = checkpoint;
  options.loader_workers = flags.workers;
  options.devices = to_devices(flags.devices, "all");
  options.precision = choose_precision(flags, info);
  options.batch_size = flags.batch_size.value_or(options.batch_size);
  check_model(options.checkpoint, info);
  options.data = choose_data(flags.data, info);
  options.channels_last = use_channels_last(
      flags.channels_last, models::spec_from_settings(info.model),
      options.devices);
  const auto report = [&] {
    ProgressLine line("eval");
    options.on_batch = show_batches(line);
    return tasks::evaluate_checkpoint(options);
  }();
  flags.as_json ? print_json(report, options.precision)
                : print_text(report, options.data, options.precision);
}

}  // namespace

void add_eval(CLI::App& app) {
  auto* command =
      add_command(app, "eval", "Evaluate a checkpoint on the test split");
  auto flags = std::make_shared<EvalFlags>();
  add_checkpoint_option(*command, flags->checkpoint);
  add_data_options(*command, flags->data, "that of the checkpoint");
  add_device_options(*command, flags->devices, "all");
  add_channels_last_option(*command, flags->channels_last);
  add_choice(*command, "--precision", flags->precision,
             training::precision_names(), "fp32, bf16 or fp16")
      ->default_str("that of the run, in which it evaluated, too");
  add_count(*command, "--batch-size", flags->batch_size, {1},
            "samples per batch, over all devices")
      ->default_str("250; language models: 64");
  add_count(*command, "--workers", flags->workers, {0, 256},
            "threads that prepare batches; 0: the main thread prepares them");
  command->add_flag("--json", flags->as_json, "print JSON [no]");
  command->callback([flags] { run(*flags); });
}

}  // namespace lockstep::cli
