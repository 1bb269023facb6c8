#pragma once

#include <utility>

#include "lockstep/tools/comparison/comparison.h"
#include "tests/tools/canned.h"

namespace lockstep::tools {

inline TraceLog::Span canned_span(size_t lane, const char* name,
                                  TraceCategory category, int64_t begin_ms,
                                  int64_t end_ms) {
  return {.lane = lane,
          .name = name,
          .category = category,
          .begin_ns = begin_ms * 1'000'000,
          .end_ns = end_ms * 1'000'000};
}

/// Returns a step of 40 ms: forward to 10, backward to `backward_ms`,
/// all-reduce from 25 to 32 with a wait up to 30, update from 32.
inline training::RankTrace canned_trace(int64_t number, int64_t backward_ms) {
  constexpr auto kCompute = TraceCategory::kCompute;
  TraceLog log{.lanes = {"main", "cpu:0", "all-reduce"}};
  log.spans = {
      canned_span(0, "step", TraceCategory::kStep, 0, 40),
      canned_span(1, "forward", kCompute, 0, 8),
      canned_span(1, "loss", kCompute, 8, 10),
      canned_span(1, "backward", kCompute, 10, backward_ms),
      canned_span(2, "all-reduce", TraceCategory::kCommunication, 25, 32),
      canned_span(2, "wait", TraceCategory::kWait, 26, 30),
      canned_span(1, "update", kCompute, 32, 40),
  };
  return {.rank = number,
          .host = "host",
          .pid = 1,
          .devices = "cpu:0",
          .clock = "clock",
          .log = std::move(log)};
}

inline Comparison canned_ddp() {
  auto round = canned_round("ddp", {0.040});
  round.time_line = {canned_trace(0, 25), canned_trace(1, 30)};
  Comparison comparison;
  comparison.runs = {pool(kLockstep, {canned_round("dp", {0.050})}),
                     pool(kLockstep, {round})};
  relate(comparison);
  return comparison;
}

}  // namespace lockstep::tools
