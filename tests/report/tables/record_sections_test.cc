#include <string>
#include <vector>

#include <gtest/gtest.h>

#include "lockstep/report/tables/comparison_sections.h"
#include "tests/report/canned.h"

namespace lockstep::report {
namespace {

TEST(EnvironmentSection, HasOneColumnForRunsThatHadTheSame) {
  Comparison comparison;
  comparison.runs = {pool(kLockstep, {canned_round("single", {0.1})}),
                     pool(kLockstep, {canned_round("dp", {0.1})}),
                     pool(kLockstep, {canned_round("ddp", {0.1})})};
  for (auto& run : comparison.runs) run.report.environment.host = "one";
  EXPECT_EQ(environment_section(comparison).header,
            (std::vector<std::string>{"Fact", "single, dp, ddp"}));
  comparison.runs[2].report.environment.host = "two";
  EXPECT_EQ(environment_section(comparison).header,
            (std::vector<std::string>{"Fact", "single, dp", "ddp"}));
}

}  // namespace
}  // namespace lockstep::report
