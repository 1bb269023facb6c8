#include "lockstep/tools/measurement/device_time.h"

#include <gtest/gtest.h>

namespace lockstep::tools {
namespace {

constexpr double kNs = 1e-9;

TEST(DivideTime, GivesEachMomentToTheFirstClaim) {
  const StepParts parts = divide_time(
      100, 200,
      {{.begin_ns = 0, .end_ns = 150, .rank = 2, .part = &StepParts::between},
       {.begin_ns = 110, .end_ns = 120, .rank = 1, .part = &StepParts::casts},
       {.begin_ns = 115, .end_ns = 130, .rank = 0, .part = &StepParts::update},
       {.begin_ns = 140, .end_ns = 145, .rank = 0, .part = nullptr}});
  EXPECT_NEAR(parts.update, 15 * kNs, 1e-12);
  EXPECT_NEAR(parts.casts, 5 * kNs, 1e-12);
  EXPECT_NEAR(parts.between, (50 - 20 - 5) * kNs, 1e-12);
  EXPECT_NEAR(parts.waiting, 50 * kNs, 1e-12);
}

// A device with a forward from 0 to 60 and an update from 80 to 100.
class TimeOfDevice : public testing::Test {
 protected:
  void span(size_t lane, const char* name, int64_t begin, int64_t end,
            TraceCategory category = TraceCategory::kCompute) {
    trace_.spans.push_back({.lane = lane,
                            .name = name,
                            .category = category,
                            .begin_ns = begin,
                            .end_ns = end});
  }
  void op(const Device& device, OperatorKind kind, int64_t begin, int64_t end) {
    step_.operators.operators.push_back({.kind = kind,
                                         .device = device,
                                         .thread = std::this_thread::get_id(),
                                         .begin_ns = begin,
                                         .end_ns = end,
                                         .entered_ns = begin,
                                         .left_ns = end});
  }
  StepParts time(size_t devices = 2) const {
    return time_of_device(kDevice, devices, std::this_thread::get_id(), step_,
                          trace_);
  }

  static constexpr Device kDevice{.index = 1, .slices = 2};
  static constexpr Device kHost{};
  TraceLog trace_{.lanes = {"main", "cpu:0", "cpu:1", "all-reduce"},
                  .spans = {}};
  RecordedStep step_{.begin_ns = 0, .end_ns = 120, .operators = {}};
};

TEST_F(TimeOfDevice, IsBetweenKernelsInItsSpans) {
  span(0, "step", 0, 120, TraceCategory::kStep);
  span(2, "forward", 0, 60);
  span(2, "sum+update", 80, 100);
  op(kDevice, OperatorKind::kMatrix, 10, 40);
  op(kDevice, OperatorKind::kCast, 40, 45);
  op(kDevice, OperatorKind::kNone, 45, 50);
  op(kDevice, OperatorKind::kElementwise, 85, 95);  // in the update
  const StepParts parts = time();
  EXPECT_NEAR(parts.products, 30 * kNs, 1e-12);
  EXPECT_NEAR(parts.casts, 5 * kNs, 1e-12);
  EXPECT_NEAR(parts.between, 25 * kNs, 1e-12);
  EXPECT_NEAR(parts.update, 20 * kNs, 1e-12);
  EXPECT_NEAR(parts.elementwise, 0, 1e-12);
  EXPECT_NEAR(parts.waiting, 40 * kNs, 1e-12);
}

TEST_F(TimeOfDevice, WaitsForTheCallerUnlessItIsTheOnlyDevice) {
  span(0, "forward", 0, 100);
  op(kHost, OperatorKind::kMatrix, 10, 20);
  EXPECT_NEAR(time(2).waiting, 110 * kNs, 1e-12);
  EXPECT_NEAR(time(1).waiting, 20 * kNs, 1e-12);
  EXPECT_NEAR(time(1).between, 90 * kNs, 1e-12);
}

TEST_F(TimeOfDevice, DoesNotCountTheKernelsOfOtherDevices) {
  step_.operators.operators.clear();
  op(Device{.index = 0, .slices = 2}, OperatorKind::kMatrix, 10, 20);
  step_.operators.operators.back().thread = {};
  EXPECT_NEAR(time().waiting, 120 * kNs, 1e-12);
}

}  // namespace
}  // namespace lockstep::tools
