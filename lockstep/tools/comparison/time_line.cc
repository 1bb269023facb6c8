#include "lockstep/tools/comparison/time_line.h"

#include <algorithm>
#include <cmath>
#include <iterator>
#include <map>
#include <numeric>
#include <set>
#include <string_view>
#include <utility>

#include <fmt/format.h>

#include "lockstep/base/format.h"

namespace lockstep::tools {
namespace {

using training::RankTrace;
using Span = TraceLog::Span;

// Smallest share of a rank's step that is shown.
constexpr double kMinShareShown = 0.005;

// More ranks would fill the screen with rows that look alike.
constexpr size_t kMaxRanks = 8;

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

enum class Activity : size_t { kSending, kWaiting, kComputing };

Activity activity_of(const Block& block) {
  if (block.kind == kWait) return Activity::kWaiting;
  return block.kind == kAllReduce ? Activity::kSending : Activity::kComputing;
}

// The moment at which a block of a rank begins (+1) or ends (-1).
struct Edge {
  double moment_s = 0;
  Activity activity = Activity::kComputing;
  int change = 0;
};

// Adds the communication of one rank to `time`. Lanes do several things at the
// same time, for example if one waits for another one that sends. Each moment
// counts only once.
void add_communication(std::vector<Edge> edges, CommunicationTime& time) {
  std::ranges::sort(edges, {}, &Edge::moment_s);
  std::array<int, 3> lanes{};
  double last_s = 0;
  for (const Edge& edge : edges) {
    const auto [sending, waiting, computing] = lanes;
    const double passed_s = edge.moment_s - last_s;
    if (sending + waiting > 0) time.total_s += passed_s;
    if (sending == 0 && waiting > 0) time.wait_s += passed_s;
    if (sending + waiting > 0 && computing > 0) time.hidden_s += passed_s;
    lanes.at(static_cast<size_t>(edge.activity)) += edge.change;
    last_s = edge.moment_s;
  }
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
      kMinShareShown * line.seconds * static_cast<double>(ranks.size());
  for (auto& row : line.rows) {
    std::erase_if(row.blocks, [&](const Block& block) {
      return !is_communication(block) && totals[block.kind] < least;
    });
  }
  std::erase_if(line.rows, [](const auto& row) { return row.blocks.empty(); });
}

// Returns the numbers of the lanes in the order of their first use, except that
// those of devices are in the order of the devices: "cpu:2" before "cpu:10".
std::vector<size_t> lanes_in_order(const std::vector<std::string>& lanes) {
  std::vector<size_t> order(lanes.size());
  std::iota(order.begin(), order.end(), 0);
  std::vector<size_t> devices;
  std::ranges::copy_if(order, std::back_inserter(devices), [&](size_t lane) {
    return lanes[lane].find(':') != std::string::npos;
  });
  const std::vector<size_t> places = devices;
  std::ranges::sort(devices, {}, [&](size_t lane) {
    return std::pair(lanes[lane].size(), lanes[lane]);
  });
  for (size_t i = 0; i < places.size(); ++i) order[places[i]] = devices[i];
  return order;
}

std::vector<TimeLineRow> rows_of(const RankTrace& rank) {
  std::vector<TimeLineRow> rows;
  for (const size_t lane : lanes_in_order(rank.log.lanes)) {
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
  for (size_t rank = 0; rank < std::min(ranks, kMaxRanks); ++rank) {
    for (TimeLineRow& row : rows_of(run.time_line[rank])) {
      line.rows.push_back(std::move(row));
    }
  }
  drop_trifles(line);
  line.title = fmt::format("A typical step of {}, {}", run.label(),
                           format_duration(line.seconds));
  if (ranks > kMaxRanks) {
    line.title += fmt::format(", {} of {} ranks", kMaxRanks, ranks);
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
  std::map<int64_t, std::vector<Edge>> edges;
  for (const auto& row : line.rows) {
    auto& own = edges[row.rank];
    for (const Block& block : row.blocks) {
      const Activity activity = activity_of(block);
      own.push_back({block.begin_s, activity, 1});
      own.push_back({block.end_s, activity, -1});
    }
  }
  CommunicationTime time;
  for (auto& [rank, own] : edges) add_communication(std::move(own), time);
  const double ranks = static_cast<double>(std::max<size_t>(edges.size(), 1));
  return {.total_s = time.total_s / ranks,
          .wait_s = time.wait_s / ranks,
          .hidden_s = time.hidden_s / ranks};
}

}  // namespace lockstep::tools
