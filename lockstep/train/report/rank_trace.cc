#include "lockstep/train/rank_trace.h"

#include <algorithm>
#include <functional>
#include <string>
#include <unistd.h>
#include <utility>

#include <fmt/format.h>

#include "lockstep/base/error.h"
#include "lockstep/base/host_identity.h"
#include "lockstep/base/json.h"

namespace lockstep::training {
namespace {

using nlohmann::json;

// Number of barriers at which clocks are compared. With this many it does not
// matter if a rank leaves one of them late.
constexpr int kMoments = 15;

constexpr size_t kMaxSpansOfStep = 2000;

// Returns the identity of this process's monotonic clock. A booted kernel has
// one for each time namespace.
std::string clock_of_this_process() {
  return boot_id() + " " + namespace_id("time");
}

std::vector<int64_t> moments_together(const ProcessGroup& group) {
  std::vector<int64_t> moments;
  for (int i = 0; i < kMoments; ++i) {
    group.barrier();
    moments.push_back(trace_clock_ns());
  }
  return moments;
}

void shift(RankTrace& trace, int64_t ns) {
  for (auto& span : trace.log.spans) {
    span.begin_ns -= ns;
    span.end_ns -= ns;
  }
}

void align(const ProcessGroup& group, std::vector<RankTrace>& ranks) {
  const bool is_one_clock =
      std::all_of(ranks.begin(), ranks.end(), [&](const RankTrace& trace) {
        return trace.clock == ranks.front().clock;
      });
  if (is_one_clock) return;
  const auto texts =
      group.all_gather_text(json(moments_together(group)).dump());
  const auto moments_of = [&](size_t rank) {
    return parse_json(texts[rank]).get<std::vector<int64_t>>();
  };
  for (size_t rank = 1; rank < ranks.size(); ++rank) {
    if (ranks[rank].clock == ranks[0].clock) continue;
    shift(ranks[rank], clock_offset(moments_of(rank), moments_of(0)));
    ranks[rank].clock = ranks[0].clock;
  }
}

bool is_step(const TraceLog::Span& span) {
  return span.category == TraceCategory::kStep;
}

// Returns the index of the step of median duration, or -1 without any steps.
int64_t typical_index(const RankTrace& rank) {
  std::vector<std::pair<int64_t, int64_t>> steps;  // duration, index
  for (const auto& span : rank.log.spans) {
    if (is_step(span)) {
      steps.emplace_back(span.end_ns - span.begin_ns, span.index);
    }
  }
  if (steps.empty()) return -1;
  const auto middle =
      steps.begin() + static_cast<std::ptrdiff_t>((steps.size() - 1) / 2);
  std::nth_element(steps.begin(), middle, steps.end());
  return middle->second;
}

// Keeps only the spans within the rank's own step `index`.
void keep_step(RankTrace& rank, int64_t index) {
  auto& spans = rank.log.spans;
  const auto step = std::find_if(spans.begin(), spans.end(),
                                 [index](const TraceLog::Span& span) {
                                   return is_step(span) && span.index == index;
                                 });
  if (step == spans.end()) {
    spans.clear();
    return;
  }
  const auto [begin, end] = std::pair(step->begin_ns, step->end_ns);
  std::erase_if(spans, [begin = begin, end = end](const auto& span) {
    return span.begin_ns < begin || span.end_ns > end;
  });
}

// Keeps at most `most` spans, the longest ones. The step itself is one of them.
void keep_longest(RankTrace& rank, size_t most) {
  auto& spans = rank.log.spans;
  if (spans.size() <= most) return;
  std::vector<int64_t> lengths;
  for (const auto& span : spans) {
    lengths.push_back(span.end_ns - span.begin_ns);
  }
  const auto least = lengths.begin() + static_cast<std::ptrdiff_t>(most);
  std::nth_element(lengths.begin(), least, lengths.end(), std::greater<>());
  std::erase_if(spans, [least = *least](const auto& span) {
    return span.end_ns - span.begin_ns <= least;
  });
}

json to_json(const TraceLog::Span& span) {
  return {{"lane", span.lane},
          {"name", span.name},
          {"category", to_string(span.category)},
          {"index", span.index},
          {"begin_ns", span.begin_ns},
          {"end_ns", span.end_ns}};
}

TraceLog::Span span_from_json(const json& object, size_t lanes) {
  TraceLog::Span span;
  object.at("lane").get_to(span.lane);
  object.at("name").get_to(span.name);
  span.category =
      parse_trace_category(object.at("category").get<std::string>());
  object.at("index").get_to(span.index);
  object.at("begin_ns").get_to(span.begin_ns);
  object.at("end_ns").get_to(span.end_ns);
  if (span.lane < lanes && span.begin_ns <= span.end_ns) return span;
  throw IoError({.code = ErrorCode::kMalformedData,
                 .what = "a trace has a span that can't be",
                 .expected = fmt::format(
                     "one of {} lanes, an end after the begin", lanes),
                 .got = object.dump()});
}

}  // namespace

RankTrace trace_of_rank(const ProcessGroup& group,
                        const std::vector<Device>& devices, TraceLog log) {
  return {.rank = group.rank(),
          .host = host_name(),
          .pid = ::getpid(),
          .devices = join_names(devices),
          .clock = clock_of_this_process(),
          .log = std::move(log)};
}

std::vector<RankTrace> gather_traces(const ProcessGroup& group,
                                     const RankTrace& own) {
  std::vector<RankTrace> ranks;
  for (const auto& text : group.all_gather_text(to_json(own).dump())) {
    ranks.push_back(rank_trace_from_json(try_parse_json(text)));
  }
  align(group, ranks);
  return ranks;
}

int64_t clock_offset(const std::vector<int64_t>& peer_moments,
                     const std::vector<int64_t>& own_moments) {
  std::vector<int64_t> ahead;
  for (size_t i = 0; i < std::min(peer_moments.size(), own_moments.size());
       ++i) {
    ahead.push_back(peer_moments[i] - own_moments[i]);
  }
  if (ahead.empty()) return 0;
  const auto middle =
      ahead.begin() + static_cast<std::ptrdiff_t>(ahead.size() / 2);
  std::nth_element(ahead.begin(), middle, ahead.end());
  return *middle;
}

std::vector<RankTrace> typical_step(const std::vector<RankTrace>& ranks) {
  if (ranks.empty()) return {};
  const int64_t index = typical_index(ranks.front());
  if (index < 0) return {};
  std::vector<RankTrace> result = ranks;
  int64_t begin_ns = INT64_MAX;
  for (auto& rank : result) {
    keep_step(rank, index);
    for (const auto& span : rank.log.spans) {
      begin_ns = std::min(begin_ns, span.begin_ns);
    }
  }
  for (auto& rank : result) shift(rank, begin_ns);
  return result;
}

std::vector<RankTrace> gather_typical_step(const ProcessGroup& group,
                                           RankTrace own) {
  const auto indices =
      group.all_gather_text(std::to_string(typical_index(own)));
  keep_step(own, std::stoll(indices[0]));
  keep_longest(own, kMaxSpansOfStep);
  return typical_step(gather_traces(group, own));
}

json to_json(const RankTrace& trace) {
  json spans = json::array();
  for (const auto& span : trace.log.spans) spans.push_back(to_json(span));
  return {{"rank", trace.rank},        {"host", trace.host},
          {"pid", trace.pid},          {"devices", trace.devices},
          {"clock", trace.clock},      {"lanes", trace.log.lanes},
          {"spans", std::move(spans)}, {"dropped", trace.log.dropped}};
}

RankTrace rank_trace_from_json(const json& object) {
  try {
    RankTrace trace;
    object.at("rank").get_to(trace.rank);
    object.at("host").get_to(trace.host);
    object.at("pid").get_to(trace.pid);
    object.at("devices").get_to(trace.devices);
    object.at("clock").get_to(trace.clock);
    object.at("lanes").get_to(trace.log.lanes);
    object.at("dropped").get_to(trace.log.dropped);
    for (const auto& span : object.at("spans")) {
      trace.log.spans.push_back(span_from_json(span, trace.log.lanes.size()));
    }
    return trace;
  } catch (const json::exception& error) {
    throw IoError({.code = ErrorCode::kMalformedData,
                   .what = "a rank's trace can't be read",
                   .got = lockstep::text_of(error),
                   .fix = "run the same build of Lockstep on every rank"});
  }
}

}  // namespace lockstep::training
