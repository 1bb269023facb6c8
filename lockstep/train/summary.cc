#include "lockstep/train/summary.h"

#include <algorithm>
#include <cmath>
#include <utility>
#include <vector>

#include <fmt/format.h>

#include "lockstep/base/terminal.h"

namespace lockstep::train {
namespace {

using Lines = std::vector<std::pair<std::string, std::string>>;

std::string bytes(int64_t count) {
  return format_bytes(static_cast<double>(count));
}

std::string plural(int64_t count, const char* thing) {
  return fmt::format("{} {}{}", format_count(count), thing,
                     count == 1 ? "" : "s");
}

void add_times(const RunReport& report, Lines& lines) {
  const auto& time = report.step_time_s;
  lines.emplace_back(
      "steps", fmt::format("{} in {}, {} samples/s",
                           format_count(report.steps - report.first_step),
                           format_duration(report.total_time_s),
                           format_count(std::llround(report.samples_per_s))));
  lines.emplace_back("step time", fmt::format("median {}, p90 {}",
                                              format_duration(time.median),
                                              format_duration(time.p90)));
}

void add_devices(const RunReport& report, Lines& lines) {
  for (const auto& device : report.devices) {
    lines.emplace_back(
        device.name,
        fmt::format("busy {:.0f} %, memory peak {}", 100 * device.busy_fraction,
                    bytes(device.memory_peak_bytes)));
  }
  if (report.memory_shared_bytes == 0) return;
  lines.emplace_back("shared", fmt::format("memory {}, shared by all",
                                           bytes(report.memory_shared_bytes)));
}

void add_results(const RunReport& report, Lines& lines) {
  const auto add = [&](const char* name, double loss, double accuracy) {
    lines.emplace_back(name, fmt::format("loss {:.4f}, accuracy {:.2f} %", loss,
                                         100 * accuracy));
  };
  const auto& epoch = report.epochs.back();
  add("training", epoch.train_loss, epoch.train_accuracy);
  if (report.test.samples > 0) {
    add("test", report.test.loss, report.test.accuracy);
  }
}

}  // namespace

std::string summary_text(const RunReport& report) {
  if (report.losses.empty() || report.epochs.empty()) return {};
  Lines lines;
  add_times(report, lines);
  add_devices(report, lines);
  add_results(report, lines);
  size_t width = 0;
  for (const auto& line : lines) width = std::max(width, line.first.size());
  std::string text;
  for (const auto& [name, value] : lines) {
    text += fmt::format("{}{:<{}}  {}", text.empty() ? "" : "\n", name, width,
                        value);
  }
  return text;
}

std::string digest_text(const RunReport& report) {
  return fmt::format("parameter_sha256 {} ({})", report.parameter_sha256,
                     plural(report.shards, "shard"));
}

}  // namespace lockstep::train
