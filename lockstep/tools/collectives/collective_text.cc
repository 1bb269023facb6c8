#include <algorithm>

#include <fmt/format.h>

#include "lockstep/base/format.h"
#include "lockstep/base/table.h"
#include "lockstep/base/text.h"
#include "lockstep/tools/collectives/collective_bench.h"

namespace lockstep::tools {
namespace {

// nccl-tests say "float". Lockstep uses PyTorch's names, shortened.
std::string short_type(const std::string& type) {
  return type.size() > 8 ? type.substr(0, 8) : type;
}

// Columns of the table of nccl-tests.
constexpr int kWholeTable = 79;

std::string checked(const CollectiveFigure& figure) {
  return figure.wrong ? std::to_string(*figure.wrong) : "N/A";
}

std::string speedup(const CollectiveFigure& figure) {
  return figure.speedup ? fmt::format("{:.2f}", *figure.speedup) : "-";
}

// Returns a separate table for one size.
std::string narrow_text(const CollectiveReport& report,
                        const CollectiveSize& size, size_t width) {
  Table table({"backend", "time us", "algbw", "busbw", "wrong", "PyTorch x"});
  for (const auto& figure : size.figures) {
    table.add_row({figure.way, fmt::format("{:.1f}", figure.time_s * 1e6),
                   fmt::format("{:.2f}", figure.algorithm_gb_s),
                   fmt::format("{:.2f}", figure.bus_gb_s), checked(figure),
                   speedup(figure)});
  }
  return wrap(fmt::format("{} bytes, {} of {}", size.bytes, size.count,
                          report.type),
              width) +
         "\n" + table.render(width);
}

// Wraps a paragraph to the width of the table.
std::string paragraph(const std::string& text, int width) {
  return wrap(text, static_cast<size_t>(std::min(width, kWholeTable))) + "\n";
}

}  // namespace

std::string header_text(Collective collective, int ranks, int width) {
  const std::string head =
      paragraph(fmt::format("{} of {}; time: median of the slowest rank; GB/s: "
                            "10^9 bytes per second",
                            name_of(collective), counted(ranks, "rank")),
                width);
  if (width < kWholeTable) return head + "\n";
  return head + "\n" +
         fmt::format("{:<12}{:>10}{:>10} {:<8}{:>10}{:>7}{:>7}{:>6}{:>8}\n", "",
                     "size", "count", "type", "time", "algbw", "busbw", "wrong",
                     "PyTorch") +
         fmt::format("{:<12}{:>10}{:>10} {:<8}{:>10}{:>7}{:>7}{:>6}{:>8}\n",
                     "backend", "(bytes)", "", "", "(us)", "(GB/s)", "(GB/s)",
                     "", "x");
}

std::string to_text(const CollectiveReport& report, const CollectiveSize& size,
                    int width) {
  if (width < kWholeTable) {
    return narrow_text(report, size, static_cast<size_t>(width));
  }
  std::string text;
  for (const auto& figure : size.figures) {
    text += fmt::format(
        "{:<12}{:>10}{:>10} {:<8}{:>10.1f}{:>7.2f}{:>7.2f}{:>6}{:>8}\n",
        figure.way, size.bytes, size.count, short_type(report.type),
        figure.time_s * 1e6, figure.algorithm_gb_s, figure.bus_gb_s,
        checked(figure), speedup(figure));
  }
  return text;
}

std::string summary_text(const CollectiveReport& report, int width) {
  if (report.sizes.empty()) return {};
  const CollectiveSize& size = report.sizes.back();
  std::string text =
      "\n" +
      paragraph(
          fmt::format(
              "Memory ceiling at {}, with {}: a copy of this size takes {:.1f} "
              "us, an update in place {:.1f} us: {:.2f} GB/s.",
              format_bytes(static_cast<double>(size.bytes)),
              counted(report.ranks, "process", "processes"), size.copy_s * 1e6,
              size.update_s * 1e6, ceiling_gb_s(report, size)),
          width);
  if (const auto share = share_of_ceiling(report, size)) {
    text += paragraph(
        fmt::format("The resident all-reduce moves as much ({} and {} of each "
                    "element) and reaches {:.2f} GB/s: {:.0f} %.",
                    counted(report.ranks, "read"),
                    counted(report.ranks, "write"),
                    *share * ceiling_gb_s(report, size), *share * 100),
        width);
  }
  text += report.is_checked
              ? fmt::format("Wrong elements: {}\n", report.wrong())
              : "The data was not checked.\n";
  return text;
}

nlohmann::json to_json(const CollectiveReport& report) {
  using nlohmann::json;
  json sizes = json::array();
  for (const auto& size : report.sizes) {
    json figures = json::array();
    for (const auto& figure : size.figures) {
      figures.push_back({{"backend", figure.way},
                         {"time_us", figure.time_s * 1e6},
                         {"algbw_gb_s", figure.algorithm_gb_s},
                         {"busbw_gb_s", figure.bus_gb_s},
                         {"wrong", figure.wrong ? json(*figure.wrong) : json()},
                         {"speedup_over_pytorch",
                          figure.speedup ? json(*figure.speedup) : json()}});
    }
    const auto share = share_of_ceiling(report, size);
    sizes.push_back(
        {{"bytes", size.bytes},
         {"count", size.count},
         {"backends", figures},
         {"copy_us", size.copy_s * 1e6},
         {"update_us", size.update_s * 1e6},
         {"ceiling_gb_s", ceiling_gb_s(report, size)},
         {"resident_share_of_ceiling", share ? json(*share) : json()}});
  }
  return {{"collective", name_of(report.collective)},
          {"type", report.type},
          {"ranks", report.ranks},
          {"sizes", sizes}};
}

}  // namespace lockstep::tools
