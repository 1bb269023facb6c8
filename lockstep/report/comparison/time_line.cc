#include "lockstep/report/comparison/time_line.h"

#include <algorithm>
#include <cmath>
#include <map>
#include <set>
#include <string_view>

#include <fmt/format.h>

#include "lockstep/base/terminal.h"

namespace lockstep::report {
namespace {

using training::RankTrace;
using Span = TraceLog::Span;

// Smallest share of a rank's step that is shown.
constexpr double kLeastShareShown = 0.005;

// More ranks would fill the screen with rows that look alike.
constexpr size_t kMostRanks = 8;

constexpr size_t kind_of(std::string_view name) {
  for (size_t kind = 0; kind < kBlockKinds.size(); ++kind) {
    if (kBlockKinds[kind].name == name) return kind;
  }
  return kBlockKinds.size();
}

constexpr size_t kForward = kind_of("forward");
constexpr size_t kAllReduce = kind_of("all-reduce");
constexpr size_t kUpdate = kind_of("update");
constexpr size_t kWait = kind_of("wait");

size_t kind_of(const Span& span) {
  if (span.category == TraceCategory::kWait) return kWait;
  if (span.category == TraceCategory::kCommunication) return kAllReduce;
  if (span.name == "loss") return kForward;
  const size_t kind = kind_of(span.name);
  // "sum", "norm", ...: between the gradients and the update of the parameters.
  return kind < kBlockKinds.size() ? kind : kUpdate;
}

bool is_communication(const Block& block) {
  return block.kind == kAllReduce || block.kind == kWait;
}

double seconds(int64_t ns) { return static_cast<double>(ns) / 1e9; }

// Converts nested spans into blocks that don't overlap.
class Flattening {
 public:
  void add(const Span& span) {
    close_before(seconds(span.begin_ns));
    if (!open_.empty()) emit(open_.back(), seconds(span.begin_ns));
    open_.push_back({.kind = kind_of(span),
                     .begin_s = seconds(span.begin_ns),
                     .end_s = seconds(span.end_ns)});
  }

  std::vector<Block> finish() {
    close_before(INFINITY);
    return std::move(blocks_);
  }

 private:
  void close_before(double moment) {
    while (!open_.empty() && open_.back().end_s <= moment) {
      const double end = open_.back().end_s;
      emit(open_.back(), end);
      open_.pop_back();
      if (!open_.empty()) open_.back().begin_s = end;
    }
  }

  // Adds the part of `open` up to `end`.
  void emit(const Block& open, double end) {
    if (end <= open.begin_s) return;
    blocks_.push_back(
        {.kind = open.kind, .begin_s = open.begin_s, .end_s = end});
  }

  std::vector<Block> open_;  // outermost first
  std::vector<Block> blocks_;
};

// Returns the time in which `block` and one of `others` overlap. The blocks of
// `others` don't overlap each other.
double overlap(const Block& block, const std::vector<Block>& others) {
  double sum = 0;
  for (const Block& other : others) {
    sum += std::max(0.0, std::min(block.end_s, other.end_s) -
                             std::max(block.begin_s, other.begin_s));
  }
  return sum;
}

// Removes the kinds of blocks on which the ranks spent little time.
void drop_trifles(TimeLine& line) {
  std::set<int64_t> ranks;
  std::array<double, kBlockKinds.size()> totals{};
  for (const auto& row : line.rows) {
    ranks.insert(row.rank);
    for (const Block& block : row.blocks) totals[block.kind] += block.seconds();
  }
  const double least =
      kLeastShareShown * line.seconds * static_cast<double>(ranks.size());
  for (auto& row : line.rows) {
    std::erase_if(row.blocks, [&](const Block& block) {
      return !is_communication(block) && totals[block.kind] < least;
    });
  }
  std::erase_if(line.rows, [](const auto& row) { return row.blocks.empty(); });
}

std::vector<TimeLineRow> rows_of(const RankTrace& rank) {
  std::vector<TimeLineRow> rows;
  for (size_t lane = 0; lane < rank.log.lanes.size(); ++lane) {
    Flattening flattening;
    for (const Span& span : rank.log.spans) {
      if (span.lane != lane || span.category == TraceCategory::kStep) continue;
      flattening.add(span);
    }
    rows.push_back(
        {.rank = rank.rank,
         .label = fmt::format("rank {}  {}", rank.rank, rank.log.lanes[lane]),
         .blocks = flattening.finish()});
  }
  return rows;
}

}  // namespace

std::vector<size_t> TimeLine::kinds() const {
  std::set<size_t> kinds;
  for (const auto& row : rows) {
    for (const Block& block : row.blocks) kinds.insert(block.kind);
  }
  return {kinds.begin(), kinds.end()};
}

TimeLine time_line_of(const ComparedRun& run) {
  TimeLine line;
  for (const RankTrace& rank : run.time_line) {
    for (const Span& span : rank.log.spans) {
      line.seconds = std::max(line.seconds, seconds(span.end_ns));
    }
  }
  const size_t ranks = run.time_line.size();
  for (size_t rank = 0; rank < std::min(ranks, kMostRanks); ++rank) {
    for (TimeLineRow& row : rows_of(run.time_line[rank])) {
      line.rows.push_back(std::move(row));
    }
  }
  drop_trifles(line);
  line.title = fmt::format("A typical step of {}, {}", run.label(),
                           format_duration(line.seconds));
  if (ranks > kMostRanks) {
    line.title += fmt::format(", {} of {} ranks", kMostRanks, ranks);
  }
  return line;
}

std::vector<TimeLine> time_lines(const Comparison& comparison) {
  std::vector<TimeLine> lines;
  for (const auto& run : comparison.runs) {
    if (!has_ranks(run.report.strategy)) continue;
    TimeLine line = time_line_of(run);
    if (!line.rows.empty()) lines.push_back(std::move(line));
  }
  return lines;
}

CommunicationTime communication_of(const TimeLine& line) {
  CommunicationTime time;
  std::map<int64_t, std::vector<Block>> computed;
  for (const auto& row : line.rows) {
    auto& blocks = computed[row.rank];
    for (const Block& block : row.blocks) {
      if (!is_communication(block)) blocks.push_back(block);
    }
  }
  for (const auto& row : line.rows) {
    for (const Block& block : row.blocks) {
      if (!is_communication(block)) continue;
      time.total_s += block.seconds();
      if (block.kind == kWait) time.wait_s += block.seconds();
      time.hidden_s += overlap(block, computed[row.rank]);
    }
  }
  const double ranks =
      static_cast<double>(std::max<size_t>(computed.size(), 1));
  return {.total_s = time.total_s / ranks,
          .wait_s = time.wait_s / ranks,
          .hidden_s = time.hidden_s / ranks};
}

}  // namespace lockstep::report
