#include <string>
#include <vector>

#include <gtest/gtest.h>

#include "lockstep/tools/tables/comparison_sections.h"
#include "tests/tools/canned.h"

namespace lockstep::tools {
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

TEST(WorkSection, LeavesOutFactsThatNoRunHas) {
  Comparison comparison;
  comparison.runs = {pool(kLockstep, {canned_round("single", {0.1})}),
                     pool(kLockstep, {canned_round("dp", {0.1})})};
  const auto last_row = [&] { return work_section(comparison).rows.back(); };
  EXPECT_EQ(last_row(),
            (std::vector<std::string>{"Lockstep", "0.1.0", "0.1.0"}));
  comparison.runs[1].report.parameter_sha256 = "1f2e";
  EXPECT_EQ(last_row(), (std::vector<std::string>{"SHA-256 of the parameters",
                                                  "-", "1f2e"}));
}

}  // namespace
}  // namespace lockstep::tools
