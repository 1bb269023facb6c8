#include <algorithm>
#include <cmath>
#include <cstdio>
#include <filesystem>
#include <iterator>
#include <memory>
#include <optional>
#include <unistd.h>

#include <fmt/format.h>

#include "lockstep/base/atomic_file.h"
#include "lockstep/base/exit_code.h"
#include "lockstep/base/format.h"
#include "lockstep/base/interrupt.h"
#include "lockstep/base/json.h"
#include "lockstep/base/output.h"
#include "lockstep/base/stopwatch.h"
#include "lockstep/base/terminal.h"
#include "lockstep/base/text.h"
#include "lockstep/cli/command_options.h"
#include "lockstep/cli/embed/device_options.h"
#include "lockstep/cli/model_family.h"
#include "lockstep/cli/progress_line.h"
#include "lockstep/cli/start/add_option.h"
#include "lockstep/cli/start/checks.h"
#include "lockstep/cli/start/program.h"
#include "lockstep/inspect/device_topology.h"
#include "lockstep/tools/charts/charts.h"
#include "lockstep/tools/charts/comparison_text.h"
#include "lockstep/tools/commands/commands.h"
#include "lockstep/tools/measurement/run_comparison.h"
#include "lockstep/tools/measurement/step_time.h"
#include "lockstep/tools/page/comparison_page.h"
#include "lockstep/train/rank_trace.h"
#include "lockstep/train/report/run_environment.h"
#include "lockstep/train/train_options.h"

namespace lockstep::cli {
namespace {

struct CompareFlags {
  explicit CompareFlags(const std::vector<MakeFamily>& made) : families(made) {}

  ModelFamilies families;
  std::string model = "mlp";
  DeviceFlags devices;
  tools::CompareOptions options;
  std::optional<int64_t> rounds;
  std::optional<int64_t> max_rounds;
  std::vector<std::string> runs;
  bool allow_different_work = false;
  std::string report;
  std::string html;
  std::string svg;
  bool has_details = false;
};

// Shows which run is in progress and how long the rest will take: on a terminal
// in one line that changes, elsewhere in a line for each round.
class RoundProgress {
 public:
  explicit RoundProgress(const tools::RoundLimits& rounds) : rounds_(rounds) {}

  void show(const tools::StartedRun& run) {
    if (started_ == 0) watch_.restart();
    const std::string left = time_left(run);
    ++started_;
    const bool is_new = shown_round_ != run.round;
    shown_round_ = run.round;
    const std::string round =
        run.round == 0
            ? "warm-up"
            : fmt::format("round {} of {}{}", run.round, run.until_round,
                          run.until_round < rounds_.most ? " or more" : "");
    if (line_.is_on_terminal()) {
      line_.show(fmt::format("{}, {}{}", run.label, round, left));
    } else if (is_new) {
      line_.say(round + left);
    }
  }

  // Prints a line that is not erased.
  void say(const std::string& text) { line_.say(text); }

 private:
  // Estimates the time from the average of the runs so far. There may be more
  // rounds after the next check of the verdicts.
  std::string time_left(const tools::StartedRun& run) const {
    if (started_ == 0) return "";
    const double seconds = watch_.seconds() / static_cast<double>(started_) *
                           static_cast<double>(run.runs_left);
    return fmt::format(
        ", {} {} left", run.until_round < rounds_.most ? "at least" : "about",
        seconds < 59.5 ? fmt::format("{:.0f} s", std::ceil(seconds))
                       : format_duration(seconds));
  }

  tools::RoundLimits rounds_;
  Stopwatch watch_;
  int64_t started_ = 0;  // number of runs
  int64_t shown_round_ = -1;
  ProgressLine line_{"compare"};
};

// An explicit number of rounds is also the maximum, unless --max-rounds is
// given.
tools::RoundLimits to_limits(const CompareFlags& flags) {
  const tools::RoundLimits usual;
  const int64_t least = flags.rounds.value_or(usual.least);
  const int64_t most =
      flags.max_rounds.value_or(flags.rounds ? least : usual.most);
  if (flags.rounds && most < least) {
    throw BadUsage(fmt::format(
        "[usage] --max-rounds is less than --rounds: {} and {}", most, least));
  }
  return {.least = std::min(least, most), .most = most};
}

tools::Comparison run_and_compare(const CompareFlags& flags) {
  tools::CompareOptions options = flags.options;
  options.work.model = flags.model;
  if (!flags.devices.devices.empty()) options.devices = flags.devices.devices;
  const auto devices = to_devices(flags.devices, "all");
  options.work.channels_last = flags.families.of_model(flags.model)
                                   .uses_channels_last(flags.model, devices);
  if (flags.devices.allow_duplicates) {
    options.child_options.emplace_back("--allow-duplicate-devices");
  }
  if (flags.devices.oversubscribes) {
    options.child_options.emplace_back("--oversubscribe");
  }
  options.rounds = to_limits(flags);
  RoundProgress progress(options.rounds);
  return tools::run_compare(
      options, devices,
      {.runs = [&](const tools::StartedRun& run) { progress.show(run); },
       .says = [&](const std::string& text) { progress.say(text); }},
      [] { return InterruptScope::signal() != 0; });
}

// Returns the path of the picture for narrow screens: "a-narrow.svg" for
// "a.svg". Returns an empty path if no picture is wanted.
std::string narrow_picture_path(const std::string& svg) {
  if (svg.empty()) return "";
  const std::filesystem::path path(svg);
  return (path.parent_path() /
          (path.stem().string() + "-narrow" + path.extension().string()))
      .string();
}

// Returns the run.json of a run's folder.
std::string run_file(const std::string& run) {
  std::error_code ignored;
  return std::filesystem::is_directory(run, ignored)
             ? (std::filesystem::path(run) / "run.json").string()
             : run;
}

tools::Comparison read_and_compare(const CompareFlags& flags) {
  std::vector<std::string> files;
  std::ranges::transform(flags.runs, std::back_inserter(files), run_file);
  return tools::compare_run_files(files, flags.allow_different_work
                                             ? tools::DifferentWork::kAllowed
                                             : tools::DifferentWork::kRefused);
}

// Writes the timelines that the runs have recorded. Measurements write theirs
// themselves.
void write_traces(const CompareFlags& flags,
                  const tools::Comparison& comparison) {
  if (flags.options.trace.empty() || flags.runs.empty()) return;
  for (const auto& run : comparison.runs) {
    if (run.time_line.empty()) {
      throw IoError({.code = ErrorCode::kMalformedData,
                     .what = "the run " + run.label() + " has no timeline",
                     .expected = "a run of this version, of two steps or more",
                     .fix = "leave out --trace"});
    }
    std::string name = run.label();
    std::ranges::replace(name, '/', '_');
    training::write_chrome_trace(tools::trace_path(flags.options, name),
                                 run.time_line);
  }
}

// Finds errors before the measurement rather than after it.
void check_outputs(const CompareFlags& flags) {
  for (const auto& path :
       {flags.report, flags.html, flags.svg, narrow_picture_path(flags.svg)}) {
    if (!path.empty()) const AtomicFile writable(path);
  }
  if (flags.options.trace.empty()) return;
  make_directories(flags.options.trace);
  if (!flags.runs.empty()) return;
  for (const auto& strategy : flags.options.strategies) {
    const AtomicFile writable(tools::trace_path(flags.options, strategy));
  }
}

// Compared runs may have been measured on another machine.
tools::PageFacts page_facts(const CompareFlags& flags) {
  tools::PageFacts facts{.command = command_line()};
  if (!flags.runs.empty()) return facts;
  facts.environment = training::this_environment();
  try {
    facts.topology = inspect::device_topology(to_devices(flags.devices, "all"));
  } catch (const DeviceError&) {
    // The page has no topology if the driver does not report it.
  }
  return facts;
}

void run(const CompareFlags& flags) {
  check_outputs(flags);
  const InterruptScope interrupts;
  tools::Comparison comparison;
  try {
    comparison =
        flags.runs.empty() ? run_and_compare(flags) : read_and_compare(flags);
  } catch (const tools::Interrupted& error) {
    fmt::print(stderr, "{}\n", error.what());
    throw CLI::RuntimeError(kExitSignal + InterruptScope::signal());
  }
  fmt::print("{}",
             tools::to_text(comparison,
                            flags.has_details ? tools::Details::kAll
                                              : tools::Details::kNone,
                            wants_colour(STDOUT_FILENO) ? tools::Colour::kAlways
                                                        : tools::Colour::kNever,
                            terminal_width(STDOUT_FILENO)));
  if (!flags.report.empty()) {
    training::write_json(flags.report, tools::to_json(comparison));
  }
  if (!flags.html.empty()) {
    write_atomically(flags.html, tools::to_html(comparison, page_facts(flags)));
  }
  write_traces(flags, comparison);
  if (!flags.svg.empty()) {
    write_atomically(flags.svg, tools::picture(comparison));
    write_atomically(narrow_picture_path(flags.svg),
                     tools::picture(comparison, tools::kNarrowPictureLayout));
  }
}

std::vector<Option> measurement_options(CompareFlags& flags) {
  auto& options = flags.options;
  return {
      {.name = "--strategies",
       .value = &options.strategies,
       .help = "what to compare, in this order: single, dp-classic, dp, ddp, "
               "and loops as users write them, dp-loop and ddp-loop "
               "(DataParallel or DistributedDataParallel, backward(), "
               "optim::fuse()), or with the step() of torch::optim, "
               "dp-loop-unfused and ddp-loop-unfused",
       .default_text = "single,dp-classic,dp,ddp",
       .words = tools::compared_strategies()},
      {.name = "--backend",
       .value = &options.backend,
       .help = "backend of ddp and its loops: auto, shm, or tcp (as between "
               "hosts)",
       .words = {"auto", "shm", "tcp"},
       .former_words = {"gloo"}},
      {.name = "--pytorch",
       .value = &options.with_pytorch,
       .help = "also time PyTorch on the same work: a single process, DDP over "
               "Gloo and, with ddp, the same processes without any "
               "synchronization"},
      train_option("--batch-size", &options.work.batch_size),
      {.name = "--steps",
       .value = &options.work.steps,
       .help = "timed steps per round",
       .range = at_least(1)},
      {.name = "--warmup",
       .value = &options.work.warmup,
       .help = "untimed steps before them",
       .range = at_least(0)},
      {.name = "--rounds",
       .value = &flags.rounds,
       .help = "how many times every strategy runs, each time in a new process",
       .default_text = "3, and more until results are clear",
       .range = between(1, 1000)},
      {.name = "--max-rounds",
       .value = &flags.max_rounds,
       .help = "maximum number of rounds",
       .default_text = "10; with --rounds: the same",
       .range = between(1, 1000)},
      train_option("--seed", &options.work.seed,
                   "seed of the weights and the batch"),
      train_option("--shards", &options.shards,
                   "logical shards of a batch; 0: one per device"),
      {.name = "--timeout",
       .value = &options.deadline_s,
       .help = "longest time in seconds that a process may take",
       .type = "S",
       .range = above(0)},
  };
}

std::vector<Option> output_options(CompareFlags& flags) {
  constexpr const char* kOutput = "Output";
  const auto path = [](const char* name, std::string& value, const char* help,
                       const char* type = "PATH") {
    return Option{.name = name,
                  .value = &value,
                  .help = help,
                  .type = type,
                  .default_text = "none",
                  .group = kOutput};
  };
  return {
      {.name = "--details",
       .value = &flags.has_details,
       .help = "also print the phases of a step, its share of the limit and a "
               "time line",
       .group = kOutput},
      path("--report", flags.report, "write the figures here, as JSON"),
      path("--html", flags.html, "write a page with tables and charts here"),
      path("--svg", flags.svg,
           "write a picture of the table and the charts here; FILE-narrow.svg "
           "is the same for phones"),
      path("--trace", flags.options.trace,
           "folder for a timeline of the last steps of each strategy, such as "
           "ddp.json, for Perfetto (ui.perfetto.dev); with --runs, of a "
           "typical step of each run",
           "DIR"),
      {.name = "--runs",
       .value = &flags.runs,
       .help = "don't measure, but compare these finished runs of `lockstep "
               "train`: folders (--out-dir) or run.json files",
       .type = "A,B",
       .default_text = "none"},
      {.name = "--allow-different-work",
       .value = &flags.allow_different_work,
       .help = "allow --runs with different models, batches or precision, "
               "which get no speed-up",
       .needs = "--runs"},
  };
}

}  // namespace

void add_compare(CLI::App& app, const std::vector<MakeFamily>& families) {
  auto* command =
      add_command(app, "compare", "Compare the speed of strategies");
  auto flags = std::make_shared<CompareFlags>(families);
  add_options(*command,
              {flags->families.model_option(flags->model),
               measured_precision_option(&flags->options.work.precision)});
  add_options(*command, device_options(flags->devices, "all"));
  add_options(*command, flags->families.options(OptionKind::kLayout));
  add_options(*command, measurement_options(*flags));
  add_options(*command, output_options(*flags));
  command->get_option("--runs")->excludes("--pytorch", "--strategies");
  command->footer(
      "The work is a fixed synthetic batch and SGD with momentum, or AdamW for "
      "language models; the whole step is timed. The batch of mlp has 1,024 "
      "numbers per sample, as in PyTorch's script, and in `lockstep train` it "
      "has an image, so the mlp has more parameters there. --pytorch needs a "
      "Python with "
      "torch: $LOCKSTEP_PYTHON, else the Python that Lockstep was built with "
      "(`make setup` gives it torch), else python3.\n\n"
      "Examples:\n"
      "  lockstep compare --model mlp --batch-size 64 --devices 2xcpu "
      "--pytorch\n"
      "  lockstep compare --runs runs/single,runs/dp --html report.html");
  command->callback([flags] { run(*flags); });
}

}  // namespace lockstep::cli
