#include "lockstep/tools/comparison/run_values.h"

#include <cstdint>
#include <utility>
#include <vector>

#include <gtest/gtest.h>

namespace lockstep::tools {
namespace {

TEST(Losses, HaveTheStepsThatWereNotLeftOut) {
  training::RunReport report;
  report.first_step = 10;
  report.losses = {1, 2, 3};
  report.skipped_at = {12, 13};
  EXPECT_EQ(losses_by_step(report), (std::vector<std::pair<int64_t, double>>{
                                        {11, 1}, {14, 2}, {15, 3}}));
}

}  // namespace
}  // namespace lockstep::tools
