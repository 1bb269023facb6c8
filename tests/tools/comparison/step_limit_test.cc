#include "lockstep/tools/comparison/step_limit.h"

#include <gtest/gtest.h>
#include <nlohmann/json.hpp>

#include "lockstep/base/error.h"

namespace lockstep::tools {
namespace {

StepLimit limit_of(double step_s, double alone_s) {
  StepLimit limit{.step_s = step_s,
                  .products_alone_s = alone_s,
                  .products = 8,
                  .flops = 1e9,
                  .bytes = 4e6,
                  .bytes_per_s = 1e9};
  limit.parts.products = 0.75 * step_s;
  limit.parts.update = 0.25 * step_s;
  return limit;
}

TEST(StepLimit, PoolsSharesAndKeepsTheSumOfTheParts) {
  // A busy round takes twice as long, with the same share.
  const auto pooled = pool_limits(
      {limit_of(0.010, 0.005), limit_of(0.020, 0.010), limit_of(0.010, 0.006)},
      0.012);
  ASSERT_TRUE(pooled);
  EXPECT_DOUBLE_EQ(pooled->share(), 0.5);
  EXPECT_DOUBLE_EQ(pooled->products_alone_s, 0.006);
  EXPECT_DOUBLE_EQ(pooled->parts.products, 0.009);
  EXPECT_DOUBLE_EQ(pooled->parts.update, 0.003);
  EXPECT_EQ(pooled->products, 8);
  EXPECT_DOUBLE_EQ(pooled->memory_s(), 0.004);
  EXPECT_FALSE(pool_limits({}, 0.012));
}

TEST(StepLimit, IsReadAsItWasWritten) {
  const StepLimit limit = limit_of(0.010, 0.005);
  const auto json = to_json(limit);
  EXPECT_EQ(to_json(step_limit_from_json(json)), json);
  EXPECT_EQ(json["share"], 0.5);
  EXPECT_EQ(json["parts_s"]["update"], 0.0025);
  auto broken = json;
  broken["parts_s"].erase("casts");
  EXPECT_THROW(step_limit_from_json(broken), IoError);
}

}  // namespace
}  // namespace lockstep::tools
