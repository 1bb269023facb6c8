#include <algorithm>
#include <functional>

#include <fmt/format.h>
#include <fmt/ranges.h>

#include "lockstep/base/format.h"
#include "lockstep/tools/tables/comparison_sections.h"

namespace lockstep::tools {
namespace {

using Runs = std::vector<const ComparedRun*>;

bool is_dp(const ComparedRun& run) {
  const std::string& strategy = run.report.strategy;
  return strategy == "dp" || strategy == "dp-classic" || strategy == kDpLoop ||
         strategy == kDpLoopUnfused;
}

// Returns the runs that the practical compares.
Runs compared(const Comparison& comparison) {
  Runs found;
  const auto add = [&](const std::function<bool(const ComparedRun&)>& fits) {
    for (const auto& run : comparison.runs) {
      const bool is_parallel = run.report.devices.size() > 1;
      if (run.engine == kLockstep && is_parallel && fits(run)) {
        found.push_back(&run);
      }
    }
  };
  add(is_dp);
  const size_t dp_pairs = found.size();
  add([](const ComparedRun& run) { return run.report.strategy == "ddp"; });
  if (found.size() == dp_pairs) {
    add([](const ComparedRun& run) { return run.report.strategy == kDdpLoop; });
  }
  if (dp_pairs == 0 || found.size() == dp_pairs) found.clear();
  return found;
}

// Returns "32/32", or "" if unknown.
std::string split_of(const ComparedRun& run) {
  return fmt::format("{}", fmt::join(run.report.split, "/"));
}

// DataParallel splits a batch itself. With ranks, each rank reads its own part.
std::string who_splits(const ComparedRun& run) {
  return is_dp(run) ? "automatic" : "by rank";
}

std::string busy(const ComparedRun& run) {
  const auto& devices = run.report.devices;
  const auto [least, most] = std::ranges::minmax_element(
      devices, {}, &training::DeviceReport::busy_fraction);
  const auto low = fmt::format("{:.0f}", 100 * least->busy_fraction);
  const auto high = fmt::format("{:.0f}", 100 * most->busy_fraction);
  return low == high ? fmt::format("busy {} %", low)
                     : fmt::format("busy {} to {} %", low, high);
}

// Returns the highest memory peak of the devices as a multiple of the lowest.
std::string fullest(const ComparedRun& run) {
  const auto& devices = run.report.devices;
  const auto [least, most] = std::ranges::minmax_element(
      devices, {}, &training::DeviceReport::memory_peak_bytes);
  if (least->memory_peak_bytes <= 0) return "memory not known";
  return fmt::format("memory {:.2f}x",
                     static_cast<double>(most->memory_peak_bytes) /
                         static_cast<double>(least->memory_peak_bytes));
}

// Returns the share of a step that more devices do not shorten: everything
// except forward and backward.
std::string fixed_share(const ComparedRun& run) {
  const auto& phases = run.report.phases_s;
  const double sum = total(phases);
  if (sum <= 0) return "phases not known";
  const double computing = phases.forward + phases.backward;
  return fmt::format("{:.0f} % fixed", 100 * (1 - computing / sum));
}

std::string speed(const ComparedRun& run) {
  if (!run.speedup) return "";
  return fmt::format(
      "{:.2f}x, {}", run.speedup->times,
      counted(static_cast<int64_t>(run.report.devices.size()), "device"));
}

}  // namespace

Section dp_against_ddp_section(const Comparison& comparison) {
  Section section{.title = "DP against DDP", .header = {"Aspect"}};
  const Runs runs = compared(comparison);
  if (runs.empty()) return section;
  for (const auto* run : runs) section.header.push_back(run->label());
  const auto add = [&](const std::string& name, const auto& cell) {
    std::vector<std::string> row{name};
    for (const auto* run : runs) row.push_back(cell(*run));
    section.rows.push_back(std::move(row));
  };
  add("Processes", [](const ComparedRun& run) {
    return std::to_string(run.report.processes);
  });
  add("Data split", who_splits);
  add("", split_of);
  add("GPU usage", busy);
  add("", fullest);
  add("Scalability", fixed_share);
  add("", speed);
  return section;
}

}  // namespace lockstep::tools
