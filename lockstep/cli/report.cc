#include <filesystem>
#include <memory>

#include <fmt/format.h>

#include "lockstep/base/atomic_file.h"
#include "lockstep/base/error.h"
#include "lockstep/base/output.h"
#include "lockstep/cli/commands.h"
#include "lockstep/cli/start/add_option.h"
#include "lockstep/cli/start/checks.h"
#include "lockstep/cli/start/program.h"
#include "lockstep/report/comparison/comparison.h"
#include "lockstep/report/page/comparison_page.h"
#include "lockstep/report/tensorboard.h"
#include "lockstep/train/rank_trace.h"

namespace lockstep::cli {
namespace {

namespace fs = std::filesystem;

struct ReportFlags {
  std::vector<std::string> runs;
  std::string html;
  std::string tensorboard;
  std::string trace;
};

// Returns the run.json of a run's folder.
std::string run_file(const std::string& run) {
  std::error_code ignored;
  return fs::is_directory(run, ignored) ? (fs::path(run) / "run.json").string()
                                        : run;
}

// If no output is requested, the page is written.
void choose_outputs(ReportFlags& flags) {
  const bool has_other = !flags.tensorboard.empty() || !flags.trace.empty();
  if (flags.html.empty() && !has_other) flags.html = "report.html";
  if (!flags.trace.empty() && flags.runs.size() > 1) {
    throw BadUsage(
        fmt::format("[usage] --trace: expected one run, got {}; call `lockstep "
                    "report` for each run",
                    flags.runs.size()));
  }
  // Finds errors before the work rather than after it.
  for (const auto& path : {flags.html, flags.trace}) {
    if (!path.empty()) const AtomicFile writable(path);
  }
  if (!flags.tensorboard.empty()) make_directories(flags.tensorboard);
}

// TensorBoard names runs by their folders.
std::string folder_name(std::string label) {
  for (char& letter : label) {
    const bool is_plain = std::isalnum(static_cast<unsigned char>(letter)) != 0;
    if (!is_plain && letter != '-') letter = '_';
  }
  return label.substr(0, 100);
}

void write_tensorboard(const ReportFlags& flags,
                       const report::Comparison& comparison) {
  if (flags.tensorboard.empty()) return;
  for (const auto& run : comparison.runs) {
    const fs::path folder =
        comparison.runs.size() == 1
            ? fs::path(flags.tensorboard)
            : fs::path(flags.tensorboard) / folder_name(run.label());
    fmt::print("{}\n", report::write_tensorboard(run.report, folder.string()));
  }
}

void write_trace(const ReportFlags& flags, const report::ComparedRun& run) {
  if (flags.trace.empty()) return;
  if (run.time_line.empty()) {
    throw IoError({.code = ErrorCode::kMalformedData,
                   .what = run_file(flags.runs[0]) + " has no timeline",
                   .expected = "a run of this version, of two steps or more",
                   .fix = "train with --trace"});
  }
  training::write_chrome_trace(flags.trace, run.time_line);
  fmt::print("{}\n", flags.trace);
}

void run(ReportFlags flags) {
  std::vector<std::string> paths;
  for (const auto& run : flags.runs) paths.push_back(run_file(run));
  choose_outputs(flags);
  // A report shows any runs, without speed-ups if they did different work.
  // `compare` refuses such runs, because its purpose is the speed-up.
  const report::Comparison comparison =
      report::compare_run_files(paths, report::DifferentWork::kAllowed);
  if (!flags.html.empty()) {
    write_atomically(flags.html, report::to_html(comparison));
    fmt::print("{}\n", flags.html);
  }
  write_tensorboard(flags, comparison);
  write_trace(flags, comparison.runs.front());
}

}  // namespace

void add_report(CLI::App& app) {
  auto* command =
      add_command(app, "report", "Make a page or event files of finished runs");
  auto flags = std::make_shared<ReportFlags>();
  command
      ->add_option("runs", flags->runs,
                   "folders of runs (--out-dir), or their run.json; runs with "
                   "different work are shown without a speed-up")
      ->type_name("RUN ...")
      ->required();
  add_path(*command, "--html", flags->html,
           "write a page here: tables, charts, topology, environment, commands")
      ->default_str("report.html; none if another output is given")
      ->group("Output");
  add_path(*command, "--tensorboard", flags->tensorboard,
           "folder for TensorBoard event files; with several runs, each has "
           "its own folder in it",
           "DIR")
      ->group("Output");
  add_path(*command, "--trace", flags->trace,
           "write the timeline of a typical step here, for Perfetto "
           "(ui.perfetto.dev)")
      ->group("Output");
  command->footer(
      "Example:\n"
      "  lockstep report runs/single runs/dp --html report.html");
  command->callback([flags] { run(*flags); });
}

}  // namespace lockstep::cli
