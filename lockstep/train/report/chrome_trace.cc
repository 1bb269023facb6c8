#include <algorithm>
#include <cstdint>

#include <fmt/format.h>

#include "lockstep/base/atomic_file.h"
#include "lockstep/base/json.h"
#include "lockstep/base/log.h"
#include "lockstep/base/version.h"
#include "lockstep/train/rank_trace.h"

namespace lockstep::training {
namespace {

using Json = nlohmann::ordered_json;

Json metadata(const char* name, int64_t rank, Json arguments) {
  return {{"name", name},
          {"ph", "M"},
          {"pid", rank},
          {"args", std::move(arguments)}};
}

// Adds the names of the rank and of its lanes, in their order.
void add_names(Json& events, const RankTrace& rank) {
  events.push_back(metadata(
      "process_name", rank.rank,
      {{"name", fmt::format("rank {} ({})", rank.rank, rank.devices)}}));
  events.push_back(metadata(
      "process_labels", rank.rank,
      {{"labels", fmt::format("host {}, pid {}", rank.host, rank.pid)}}));
  events.push_back(
      metadata("process_sort_index", rank.rank, {{"sort_index", rank.rank}}));
  for (size_t lane = 0; lane < rank.log.lanes.size(); ++lane) {
    Json name =
        metadata("thread_name", rank.rank, {{"name", rank.log.lanes[lane]}});
    name["tid"] = lane;
    events.push_back(std::move(name));
    Json order =
        metadata("thread_sort_index", rank.rank, {{"sort_index", lane}});
    order["tid"] = lane;
    events.push_back(std::move(order));
  }
}

double microseconds(int64_t ns) { return static_cast<double>(ns) / 1e3; }

Json event(const RankTrace& rank, const TraceLog::Span& span,
           int64_t origin_ns) {
  Json result{{"name", span.name},
              {"cat", to_string(span.category)},
              {"ph", "X"},
              {"ts", microseconds(span.begin_ns - origin_ns)},
              {"dur", microseconds(span.end_ns - span.begin_ns)},
              {"pid", rank.rank},
              {"tid", span.lane}};
  if (span.index >= 0) result["args"] = {{"index", span.index}};
  return result;
}

}  // namespace

Json to_chrome_trace(const std::vector<RankTrace>& ranks) {
  int64_t origin_ns = INT64_MAX;
  int64_t dropped = 0;
  for (const auto& rank : ranks) {
    dropped += rank.log.dropped;
    for (const auto& span : rank.log.spans) {
      origin_ns = std::min(origin_ns, span.begin_ns);
    }
  }
  Json events = Json::array();
  for (const auto& rank : ranks) {
    add_names(events, rank);
    for (const auto& span : rank.log.spans) {
      events.push_back(event(rank, span, origin_ns));
    }
  }
  return {{"displayTimeUnit", "ms"},
          {"otherData", {{"lockstep", kVersion}, {"dropped_spans", dropped}}},
          {"traceEvents", std::move(events)}};
}

void write_chrome_trace(const std::string& path,
                        const std::vector<RankTrace>& ranks) {
  const Json trace = to_chrome_trace(ranks);
  const int64_t dropped = trace["otherData"]["dropped_spans"];
  if (dropped > 0) {
    log_warning("trace", fmt::format("{} has room for {} spans of a rank: {} "
                                     "older ones were dropped; record fewer "
                                     "steps",
                                     path, TraceRecording::kMaxSpans, dropped));
  }
  AtomicFile file(path);
  file.write(trace.dump() + "\n");
  file.commit();
}

}  // namespace lockstep::training
