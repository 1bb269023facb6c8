#include <chrono>
#include <filesystem>
#include <memory>
#include <optional>
#include <thread>
#include <unistd.h>

#include <fmt/format.h>

#include "lockstep/base/error.h"
#include "lockstep/base/interrupt.h"
#include "lockstep/base/stopwatch.h"
#include "lockstep/base/terminal.h"
#include "lockstep/cli/start/add_option.h"
#include "lockstep/cli/start/commands.h"
#include "lockstep/cli/start/program.h"
#include "lockstep/monitor/job_folder.h"
#include "lockstep/tools/top/job.h"
#include "lockstep/tools/top/job_screen.h"
#include "lockstep/tools/top/metrics_endpoint.h"
#include "lockstep/tools/top/terminal_screen.h"

namespace lockstep::cli {
namespace {

using monitor::Job;

struct TopFlags {
  std::string dir;
  double interval_s = 1;
  bool is_once = false;
  bool as_json = false;
  std::optional<int> metrics_port;
};

// Time that ranks need to notice that they are watched, and to measure.
constexpr std::chrono::milliseconds kFirstSample{1500};

/// Returns the folder with the status files: DIR/live of a run's folder, or
/// `dir` itself.
std::string status_folder(const std::string& dir) {
  const std::filesystem::path live = std::filesystem::path(dir) / "live";
  return std::filesystem::is_directory(live) ? live.string() : dir;
}

std::vector<Job> jobs_of(const TopFlags& flags) {
  if (flags.dir.empty()) return monitor::local_jobs();
  const auto name =
      std::filesystem::absolute(flags.dir).lexically_normal().filename();
  return {monitor::read_job(name.string(), status_folder(flags.dir))};
}

/// Returns the jobs, or none if no rank has written yet or the folder is gone.
/// An exporter may start before a run does, and outlive it.
std::vector<Job> jobs_so_far(const TopFlags& flags) {
  try {
    return jobs_of(flags);
  } catch (const IoError&) {
    return {};
  }
}

/// Makes the ranks of `jobs` measure expensive values for a while.
void watch(const std::vector<Job>& jobs) {
  for (const Job& job : jobs) monitor::touch_watched(job.folder);
}

std::vector<Job> look(const TopFlags& flags) {
  auto jobs = jobs_of(flags);
  watch(jobs);
  return jobs;
}

void print_once(const TopFlags& flags) {
  // A job that ends before the second look is not shown.
  auto jobs = look(flags);
  std::this_thread::sleep_for(kFirstSample);
  jobs = look(flags);
  if (flags.as_json) {
    fmt::print("{}\n", monitor::jobs_json(jobs));
    return;
  }
  if (jobs.empty()) {
    fmt::print("none of your jobs is running on this host\n");
    return;
  }
  monitor::View view{.is_utf8 = locale_is_utf8()};
  const int width = terminal_width(STDOUT_FILENO);
  for (view.job = 0; view.job < jobs.size(); ++view.job) {
    auto lines = monitor::draw_jobs(jobs, view, width, 10'000);
    // The last line shows the keys.
    lines.pop_back();
    while (!lines.empty() && lines.back().empty()) lines.pop_back();
    fmt::print("{}{}", view.job == 0 ? "" : "\n", monitor::plain_text(lines));
  }
}

void show_live(const TopFlags& flags) {
  TerminalScreen screen;
  monitor::View view{.is_utf8 = locale_is_utf8()};
  const auto interval =
      std::chrono::milliseconds(static_cast<int64_t>(flags.interval_s * 1e3));
  Stopwatch since_sample;
  auto jobs = look(flags);
  while (InterruptScope::signal() == 0) {
    screen.show(
        monitor::draw_jobs(jobs, view, screen.width(), screen.height()));
    const auto waited = std::chrono::milliseconds(
        static_cast<int64_t>(since_sample.seconds() * 1e3));
    const auto key = screen.read_key(
        std::max(interval - waited, std::chrono::milliseconds(1)));
    switch (key) {
      case TerminalScreen::Key::kQuit:
        return;
      case TerminalScreen::Key::kUp:
        if (view.first_row > 0) --view.first_row;
        break;
      case TerminalScreen::Key::kDown:
        ++view.first_row;
        break;
      case TerminalScreen::Key::kNext:
        ++view.job;
        break;
      case TerminalScreen::Key::kResized:
      case TerminalScreen::Key::kNone:
        break;
    }
    if (since_sample.seconds() >= flags.interval_s) {
      jobs = look(flags);
      since_sample = Stopwatch();
    }
  }
}

// Serves an exporter that runs as a service.
void serve(const TopFlags& flags) {
  // A folder that does not exist is an error at once: it may be a typo.
  if (!flags.dir.empty()) monitor::read_statuses(status_folder(flags.dir));
  while (InterruptScope::signal() == 0) {
    watch(jobs_so_far(flags));
    std::this_thread::sleep_for(std::chrono::milliseconds(200));
  }
}

void show(const TopFlags& flags) {
  if (flags.is_once || flags.as_json) return print_once(flags);
  const InterruptScope interrupt;
  std::optional<MetricsEndpoint> endpoint;
  if (flags.metrics_port) {
    endpoint.emplace(*flags.metrics_port, [flags] {
      return monitor::jobs_metrics(jobs_so_far(flags));
    });
    if (!is_terminal(STDOUT_FILENO)) {
      fmt::print("metrics at {}\n", endpoint->url());
      std::fflush(stdout);
      return serve(flags);
    }
  }
  show_live(flags);
}

}  // namespace

void add_top(CLI::App& app) {
  auto* command = add_command(app, "top", "Watch running jobs");
  auto flags = std::make_shared<TopFlags>();
  add_options(
      *command,
      {{.name = "dir",
        .value = &flags->dir,
        .help = "a run's folder (--out-dir), local or shared; without it, all "
                "of your jobs on this host",
        .type = "DIR"},
       {.name = "--interval",
        .value = &flags->interval_s,
        .help = "seconds between updates",
        .type = "S",
        .range = at_least(0.1)},
       {.name = "--once",
        .value = &flags->is_once,
        .help = "print once and exit"},
       {.name = "--json",
        .value = &flags->as_json,
        .help = "print once as JSON, for scripts"},
       {.name = "--metrics",
        .value = &flags->metrics_port,
        .help = "also serve Prometheus's text format at "
                "http://127.0.0.1:PORT/metrics; 0: any free port. If stdout is "
                "not a terminal, do nothing else",
        .type = "PORT",
        .default_text = "off",
        .range = between(0, 65535)}});
  command->footer(
      "BUSY is the share of the time in which a device computes, WAIT in which "
      "a rank waits for other ranks or for data, COMM in which it communicates "
      "without computing. A rank is slow if it computes 1.25 times as long as "
      "the others, which then wait for it.\n"
      "Keys: q quits, up and down scroll, tab goes to the next job.");
  command->callback([flags] { show(*flags); });
}

}  // namespace lockstep::cli
