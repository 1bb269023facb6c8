#include "lockstep/tools/measurement/device_time.h"

#include <algorithm>
#include <array>
#include <set>
#include <string_view>
#include <utility>

namespace lockstep::tools {
namespace {

// Ranks of claims.
enum : int {
  kRecording,
  kWaitOfDevice,
  kUpdateOfDevice,
  kOperatorOfDevice,
  kSpanOfDevice,
  kUpdateOfCaller,
  kOperatorOfCaller,
  kCommunication,
  kSpanOfCaller,
};

double StepParts::*part_of(OperatorKind kind) {
  switch (kind) {
    case OperatorKind::kMatrix:
      return &StepParts::products;
    case OperatorKind::kCast:
      return &StepParts::casts;
    case OperatorKind::kCopy:
      return &StepParts::copies;
    case OperatorKind::kElementwise:
      return &StepParts::elementwise;
    case OperatorKind::kNone:
      break;
  }
  return &StepParts::between;
}

bool is_update(const TraceLog::Span& span) {
  constexpr std::array<std::string_view, 4> kNames{"update", "sum+update",
                                                   "sum", "norm"};
  return std::ranges::find(kNames, span.name) != kNames.end();
}

void add_operators(std::vector<Claim>& claims, const Device& device,
                   std::thread::id caller, const OperatorLog& log) {
  for (const RecordedOperator& op : log.operators) {
    const bool is_own = op.device == device;
    if (!is_own && op.thread != caller) continue;
    claims.push_back({op.entered_ns, op.begin_ns, kRecording, nullptr});
    claims.push_back({op.end_ns, op.left_ns, kRecording, nullptr});
    // The kernels that it calls have claims of their own.
    if (op.kind == OperatorKind::kNone) continue;
    claims.push_back({op.begin_ns, op.end_ns,
                      is_own ? kOperatorOfDevice : kOperatorOfCaller,
                      part_of(op.kind)});
  }
}

void add_spans(std::vector<Claim>& claims, const Device& device, size_t devices,
               const TraceLog& trace) {
  for (const TraceLog::Span& span : trace.spans) {
    const std::string& lane = trace.lanes.at(span.lane);
    const bool is_own = lane == device.name();
    const auto add = [&](int rank, double StepParts::*part) {
      claims.push_back({span.begin_ns, span.end_ns, rank, part});
    };
    if (span.category == TraceCategory::kStep) continue;
    if (span.category == TraceCategory::kWait) {
      add(is_own ? kWaitOfDevice : kCommunication, &StepParts::waiting);
    } else if (span.category == TraceCategory::kCommunication) {
      add(kCommunication, &StepParts::waiting);
    } else if (is_own) {
      is_update(span) ? add(kUpdateOfDevice, &StepParts::update)
                      : add(kSpanOfDevice, &StepParts::between);
    } else if (lane == "main") {
      if (is_update(span)) add(kUpdateOfCaller, &StepParts::update);
      // With several devices, this one waits for the caller or for the others.
      if (devices == 1) add(kSpanOfCaller, &StepParts::between);
    }
  }
}

}  // namespace

StepParts divide_time(int64_t begin_ns, int64_t end_ns,
                      const std::vector<Claim>& claims) {
  struct Edge {
    int64_t at_ns;
    bool begins;
    const Claim* claim;
  };
  std::vector<Edge> edges;
  for (const Claim& claim : claims) {
    const int64_t from_ns = std::max(claim.begin_ns, begin_ns);
    const int64_t to_ns = std::min(claim.end_ns, end_ns);
    if (from_ns >= to_ns) continue;
    edges.push_back({from_ns, true, &claim});
    edges.push_back({to_ns, false, &claim});
  }
  std::ranges::sort(edges, {}, &Edge::at_ns);
  StepParts parts;
  std::set<std::pair<int, const Claim*>> open;
  int64_t at_ns = begin_ns;
  const auto advance = [&](int64_t to_ns) {
    double StepParts::*const part =
        open.empty() ? &StepParts::waiting : open.begin()->second->part;
    if (part != nullptr) {
      parts.*part += static_cast<double>(to_ns - at_ns) / 1e9;
    }
    at_ns = to_ns;
  };
  for (const Edge& edge : edges) {
    advance(edge.at_ns);
    if (edge.begins) {
      open.emplace(edge.claim->rank, edge.claim);
    } else {
      open.erase({edge.claim->rank, edge.claim});
    }
  }
  advance(end_ns);
  return parts;
}

StepParts time_of_device(const Device& device, size_t devices,
                         std::thread::id caller, const RecordedStep& step,
                         const TraceLog& trace) {
  std::vector<Claim> claims;
  add_operators(claims, device, caller, step.operators);
  add_spans(claims, device, devices, trace);
  return divide_time(step.begin_ns, step.end_ns, claims);
}

}  // namespace lockstep::tools
