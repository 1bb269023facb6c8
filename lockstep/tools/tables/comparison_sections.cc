#include "lockstep/tools/tables/comparison_sections.h"

#include <functional>

#include <fmt/format.h>

#include "lockstep/base/format.h"
#include "lockstep/base/table.h"
#include "lockstep/tools/comparison/run_values.h"

namespace lockstep::tools {
namespace {

bool has_phases(const ComparedRun& run) {
  return total(run.report.phases_s) > 0;
}

// Returns "28.1-33.0 ms". Older reports have no lower end of the spread.
std::string spread(const training::TimeSummary& times) {
  return times.p10 > 0 ? format_durations(times.p10, times.p90)
                       : "to " + format_duration(times.p90);
}

// Returns "10.0 ms   25 % ██", with a bar of `bar_width` columns.
std::string share_cell(double seconds, double whole_s, int bar_width) {
  const double share = whole_s > 0 ? seconds / whole_s : 0;
  std::string cell =
      seconds > 0
          ? fmt::format("{}  {:>3.0f} %", format_duration(seconds), 100 * share)
          : "-";
  if (bar_width <= 0) return cell;
  const std::string drawn = seconds > 0 ? bar(share, bar_width) : "";
  const size_t room = static_cast<size_t>(bar_width) - display_width(drawn);
  return cell + " " + drawn + std::string(room, ' ');
}

}  // namespace

Section set_up_section(const Comparison& comparison) {
  Section section{
      .title = "Time",
      .header = {
          "Set up", "Step time",
          has_speedup_intervals(comparison) ? "Speed-up (95 %)" : "Speed-up",
          "p10-p90", "Total time", "Samples/s", "Processes"}};
  for (const auto& run : comparison.runs) {
    const auto& report = run.report;
    section.rows.push_back(
        {run.label(), format_duration(report.step_time_s.median),
         run.speedup ? cell_text(*run.speedup) : "", spread(report.step_time_s),
         format_duration(report.total_time_s),
         fmt::format("{:.0f}", report.samples_per_s),
         std::to_string(report.processes)});
  }
  return section;
}

Section device_section(const Comparison& comparison) {
  Section section{.title = "Devices",
                  .header = {"Set up", "Device", "Samples of a batch",
                             "Memory peak", "Busy"}};
  for (const auto& run : comparison.runs) {
    const auto& report = run.report;
    std::string label = run.label();
    for (size_t k = 0; k < report.devices.size(); ++k) {
      const auto& device = report.devices[k];
      section.rows.push_back(
          {std::exchange(label, ""), device_label(report, k),
           k < report.split.size() ? std::to_string(report.split[k]) : "0",
           bytes_text(device.memory_peak_bytes),
           fmt::format("{:.0f} %", 100 * device.busy_fraction)});
    }
    if (!report.devices.empty() && report.memory_shared_bytes > 0) {
      section.rows.push_back({"", "shared by all", "",
                              bytes_text(report.memory_shared_bytes), ""});
    }
  }
  return section;
}

Section phase_section(const Comparison& comparison, int bar_width) {
  Section section{.title = "Where the time of a step goes",
                  .header = {"Phase"}};
  std::vector<const ComparedRun*> runs;
  for (const auto& run : comparison.runs) {
    if (!has_phases(run)) continue;
    runs.push_back(&run);
    section.header.push_back(run.label());
  }
  if (runs.empty()) return section;
  const auto add_row = [&](const char* name, const auto& seconds_of) {
    std::vector<std::string> row{name};
    for (const ComparedRun* run : runs) {
      row.push_back(share_cell(seconds_of(run->report),
                               run->report.step_time_s.mean, bar_width));
    }
    section.rows.push_back(std::move(row));
  };
  for (const Phase& phase : kPhases) {
    add_row(phase.name, [&](const training::RunReport& report) {
      return report.phases_s.*phase.seconds;
    });
  }
  add_row("other", [](const training::RunReport& report) {
    return outside_phases(report).value_or(0);
  });
  add_row("mean step", [](const training::RunReport& report) {
    return report.step_time_s.mean;
  });
  return section;
}

Section limit_section(const Comparison& comparison, int bar_width) {
  Section section{.title = "Share of the limit", .header = {"Part"}};
  std::vector<const ComparedRun*> runs;
  for (const auto& run : comparison.runs) {
    if (!run.limit) continue;
    runs.push_back(&run);
    section.header.push_back(run.label());
  }
  if (runs.empty()) return section;
  const auto add_row = [&](const char* name, const auto& cell_of) {
    std::vector<std::string> row{name};
    for (const ComparedRun* run : runs) row.push_back(cell_of(*run->limit));
    section.rows.push_back(std::move(row));
  };
  const auto add_times = [&](const char* name, const auto& seconds_of) {
    add_row(name, [&](const StepLimit& limit) {
      return share_cell(std::invoke(seconds_of, limit), limit.step_s,
                        bar_width);
    });
  };
  add_times("limit: products alone",
            [](const StepLimit& limit) { return limit.products_alone_s; });
  for (const StepPart& part : kStepParts) {
    add_times(part.name, [&](const StepLimit& limit) {
      return limit.parts.*part.seconds;
    });
  }
  add_times("median step", [](const StepLimit& limit) { return limit.step_s; });
  add_times("memory alone", &StepLimit::memory_s);
  // A page has no room for these cells on one line each.
  const char* gap = bar_width > 0 ? " " : "\n";
  add_row("products of a step", [&](const StepLimit& limit) {
    return fmt::format("{}{}at {:.0f} GFLOP/s", limit.products, gap,
                       limit.products_alone_s > 0
                           ? limit.flops / limit.products_alone_s / 1e9
                           : 0);
  });
  add_row("memory of a step", [&](const StepLimit& limit) {
    return fmt::format("{}{}at {:.1f} GB/s",
                       bytes_text(static_cast<int64_t>(limit.bytes)), gap,
                       limit.bytes_per_s / 1e9);
  });
  return section;
}

Section ratio_section(const Comparison& comparison) {
  Section section{.title = "Times as fast as PyTorch", .header = {"Set up"}};
  for (const auto& other : comparison.runs) {
    if (other.engine == kPyTorch) section.header.push_back(other.label());
  }
  if (section.header.size() == 1) return section;
  for (const auto& run : comparison.runs) {
    if (run.engine == kPyTorch) continue;
    std::vector<std::string> row{run.label()};
    for (const auto& other : comparison.runs) {
      if (other.engine != kPyTorch) continue;
      row.push_back(
          differences_of_work(run.report, other.report).empty()
              ? cell_text(speed_over(run, other, comparison.confidence))
              : "");
    }
    section.rows.push_back(std::move(row));
  }
  return section;
}

}  // namespace lockstep::tools
