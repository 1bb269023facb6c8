#include "lockstep/tools/tables/comparison_sections.h"

#include <string>
#include <vector>

#include <gtest/gtest.h>

#include "tests/tools/canned.h"
#include "tests/tools/canned_time_line.h"
#include "tests/tools/texts.h"

namespace lockstep::tools {
namespace {

TEST(Sections, FillThePracticalsTable) {
  const Section section = set_up_section(canned_comparison());
  ASSERT_EQ(section.rows.size(), 4u);
  EXPECT_EQ(section.rows[0][0], "single");
  EXPECT_EQ(section.rows[0][1], "30.0 ms");
  EXPECT_EQ(section.header[2], "Speed-up (95 %)");
  EXPECT_EQ(section.rows[0][3], "29.8-30.2 ms");
  EXPECT_EQ(section.rows[0][2], "1.00x");
  EXPECT_EQ(section.rows[2][0], "dp");
  EXPECT_EQ(section.rows[2][2], "1.50x (1.50-1.50)");
  EXPECT_EQ(section.rows[2][5], "3200");
  EXPECT_EQ(section.rows[2][6], "1");
  EXPECT_EQ(section.rows[3][0], "PyTorch DDP");
}

TEST(Sections, GiveEveryDeviceARowAndSharedMemoryOne) {
  const Section section = device_section(canned_comparison());
  ASSERT_EQ(section.rows.size(), 2u + 2u + 3u);
  EXPECT_EQ(section.rows[2],
            (std::vector<std::string>{"dp-classic", "cpu:0", "32", "120.0 MiB",
                                      "90 %"}));
  EXPECT_EQ(section.rows[3][3], "40.0 MiB");
  EXPECT_EQ(section.rows[6], (std::vector<std::string>{"", "shared by all", "",
                                                       "50.0 MiB", ""}));
}

TEST(Sections, ShowPhasesOfThoseRunsThatHaveSome) {
  const Section section = phase_section(canned_comparison(), 0);
  EXPECT_EQ(section.header,
            (std::vector<std::string>{"Phase", "single", "dp-classic", "dp"}));
  ASSERT_EQ(section.rows.size(), kPhases.size() + 2);
  EXPECT_EQ(section.rows[1][0], "replicate");
  EXPECT_EQ(section.rows[1][1], "-");
  EXPECT_EQ(section.rows[1][2], "10.0 ms   25 %");
}

// Uses the numbers as they are printed: each cell is rounded to three digits.
TEST(Sections, HavePhasesThatAddUpToTheStep) {
  const Section section = phase_section(canned_comparison(), 0);
  EXPECT_EQ(section.rows[section.rows.size() - 2][0], "other");
  EXPECT_EQ(section.rows.back()[0], "mean step");
  for (size_t column = 1; column < section.header.size(); ++column) {
    double sum_ms = 0;
    for (const auto& row : section.rows) {
      if (row[0] != "mean step" && row[column] != "-") {
        EXPECT_TRUE(contains(row[column], " ms")) << row[column];
        sum_ms += std::stod(row[column]);
      }
    }
    EXPECT_NEAR(sum_ms, std::stod(section.rows.back()[column]), 0.1);
  }
  EXPECT_EQ(section.rows.back()[1], "30.0 ms  100 %");
  EXPECT_EQ(section.rows[section.rows.size() - 2][1], "3.00 ms   10 %");
}

TEST(Sections, ShowTheLimitOfThoseRunsThatHaveOne) {
  Comparison comparison = canned_comparison();
  EXPECT_TRUE(limit_section(comparison, 0).rows.empty());
  StepLimit limit{.step_s = 0.020,
                  .products_alone_s = 0.010,
                  .products = 20,
                  .flops = 2e9,
                  .bytes = 128 << 20,
                  .bytes_per_s = 32e9};
  limit.parts.products = 0.012;
  limit.parts.casts = 0.008;
  comparison.runs[2].limit = limit;
  const Section section = limit_section(comparison, 0);
  using Row = std::vector<std::string>;
  EXPECT_EQ(section.header, (Row{"Part", "dp"}));
  ASSERT_EQ(section.rows.size(), 1 + kStepParts.size() + 4);
  EXPECT_EQ(section.rows[0], (Row{"limit: products alone", "10.0 ms   50 %"}));
  EXPECT_EQ(section.rows[1], (Row{"products", "12.0 ms   60 %"}));
  EXPECT_EQ(section.rows[2], (Row{"casts", "8.00 ms   40 %"}));
  EXPECT_EQ(section.rows[3], (Row{"copies", "-"}));
  EXPECT_EQ(section.rows[8], (Row{"median step", "20.0 ms  100 %"}));
  EXPECT_EQ(section.rows[9], (Row{"memory alone", "4.19 ms   21 %"}));
  EXPECT_EQ(section.rows[10],
            (Row{"products of a step", "20\nat 200 GFLOP/s"}));
  EXPECT_EQ(section.rows[11],
            (Row{"memory of a step", "128.0 MiB\nat 32.0 GB/s"}));
  EXPECT_EQ(limit_section(comparison, 4).rows[11],
            (Row{"memory of a step", "128.0 MiB at 32.0 GB/s"}));
}

TEST(Sections, CompareWithPyTorchOnlyWhereItRan) {
  Comparison comparison = canned_comparison();
  const Section section = ratio_section(comparison);
  ASSERT_EQ(section.rows.size(), 3u);
  EXPECT_EQ(section.rows[2],
            (std::vector<std::string>{"dp", "2.50x (2.50-2.50)"}));
  comparison.runs.pop_back();
  EXPECT_TRUE(ratio_section(comparison).rows.empty());
}

TEST(Devices, OfRanksAreNamedWithTheirRank) {
  const Section section = device_section(canned_ddp());
  EXPECT_EQ(section.rows[3][1], "rank 0 cpu:0");
  EXPECT_EQ(section.rows[4][1], "rank 1 cpu:1");
  EXPECT_EQ(section.rows[4][2], "32");
  EXPECT_EQ(section.rows[4][4], "90 %");
}

}  // namespace
}  // namespace lockstep::tools
