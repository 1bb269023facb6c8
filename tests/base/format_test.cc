#include "lockstep/base/format.h"

#include <cmath>
#include <limits>
#include <string>
#include <utility>
#include <vector>

#include <gtest/gtest.h>

namespace lockstep {
namespace {

TEST(FormatBytes, UsesBinaryUnits) {
  EXPECT_EQ(format_bytes(0), "0 B");
  EXPECT_EQ(format_bytes(512), "512 B");
  EXPECT_EQ(format_bytes(1023), "1023 B");
  EXPECT_EQ(format_bytes(1024), "1.0 KiB");
  EXPECT_EQ(format_bytes(1.2 * (1 << 30)), "1.2 GiB");
  EXPECT_EQ(format_bytes(-3 * 1024), "-3.0 KiB");
}

TEST(FormatBytes, NeverPrints1024OfAUnit) {
  EXPECT_EQ(format_bytes(1024.0 * 1024 - 1), "1.0 MiB");
}

TEST(FormatDuration, PicksTheUnit) {
  EXPECT_EQ(format_duration(0), "0 s");
  EXPECT_EQ(format_duration(2.5e-8), "25.0 ns");
  EXPECT_EQ(format_duration(4.2e-6), "4.20 us");
  EXPECT_EQ(format_duration(0.00123), "1.23 ms");
  EXPECT_EQ(format_duration(0.0234), "23.4 ms");
  EXPECT_EQ(format_duration(0.5), "500 ms");
  EXPECT_EQ(format_duration(12.34), "12.3 s");
  EXPECT_EQ(format_duration(125), "2 min 5 s");
  EXPECT_EQ(format_duration(3 * 3600 + 61), "3 h 1 min");
  EXPECT_EQ(format_duration(2 * 86400 + 3600), "2 d 1 h");
}

TEST(FormatDuration, CarriesWhenItRounds) {
  EXPECT_EQ(format_duration(0.9999), "1.00 s");
  EXPECT_EQ(format_duration(9.999), "10.0 s");
  EXPECT_EQ(format_duration(59.99), "1 min 0 s");
  EXPECT_EQ(format_duration(3599.9), "1 h 0 min");
}

TEST(FormatDuration, TakesWhatIsNoNumber) {
  EXPECT_EQ(format_duration(std::numeric_limits<double>::infinity()), "?");
  EXPECT_EQ(format_duration(std::numeric_limits<double>::quiet_NaN()), "?");
  EXPECT_EQ(format_duration(-0.5), "-500 ms");
  EXPECT_FALSE(format_duration(1e300).empty());
}

TEST(FormatCount, GroupsThousands) {
  EXPECT_EQ(format_count(0), "0");
  EXPECT_EQ(format_count(999), "999");
  EXPECT_EQ(format_count(1000), "1,000");
  EXPECT_EQ(format_count(12345678), "12,345,678");
  EXPECT_EQ(format_count(-123456), "-123,456");
  EXPECT_EQ(format_count(std::numeric_limits<long long>::min()),
            "-9,223,372,036,854,775,808");
}

TEST(FormatDurations, SaysTheUnitOnce) {
  EXPECT_EQ(format_durations(0.0012, 0.0014), "1.20-1.40 ms");
  EXPECT_EQ(format_durations(0.0009, 0.0014), "900 us - 1.40 ms");
  EXPECT_EQ(format_durations(125, 130), "2 min 5 s - 2 min 10 s");
}

TEST(Counted, HasTheWordInTheFormThatTheNumberNeeds) {
  EXPECT_EQ(counted(1, "chunk"), "1 chunk");
  EXPECT_EQ(counted(0, "chunk"), "0 chunks");
  EXPECT_EQ(counted(2000, "step"), "2,000 steps");
  EXPECT_EQ(counted(1, "batch", "batches"), "1 batch");
  EXPECT_EQ(counted(3, "batch", "batches"), "3 batches");
}

TEST(FormatNumber, CanBeReadWhateverItsSize) {
  EXPECT_EQ(format_number(2.33166), "2.3317");
  EXPECT_EQ(format_number(0), "0.0000");
  EXPECT_EQ(format_number(-12345.5), "-12345.5000");
  EXPECT_EQ(format_number(41394496257835589632.0), "4.139e+19");
  EXPECT_EQ(format_number(0.1 * 0.1 * 0.1 * 0.1), "0.0001");
  EXPECT_EQ(format_number(3e-6), "3.000e-06");
  EXPECT_EQ(format_number(std::nan("")), "nan");
}

}  // namespace
}  // namespace lockstep
