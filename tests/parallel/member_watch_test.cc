#include "lockstep/parallel/module/member_watch.h"

#include <gtest/gtest.h>

namespace lockstep {
namespace {

struct Members {
  double scale = 1;
  int64_t calls = 0;
};

MemberWatch watch_of(const Members& members) {
  MemberWatch watch;
  const auto bytes = std::as_bytes(std::span(&members, 1));
  watch.start(
      {bytes.first(sizeof members.scale), bytes.subspan(sizeof members.scale)});
  return watch;
}

TEST(MemberWatch, SeesAChangeOnce) {
  Members members;
  MemberWatch watch = watch_of(members);
  EXPECT_FALSE(watch.has_change());
  members.scale = 2;
  EXPECT_TRUE(watch.has_change());
  EXPECT_TRUE(watch.has_change());
  watch.note(/*had_effect=*/true);
  EXPECT_FALSE(watch.has_change());
  members.calls = 1;
  EXPECT_TRUE(watch.has_change());
  watch.skip();
  EXPECT_FALSE(watch.has_change());
}

TEST(MemberWatch, HasNothingToSeeInAnUnknownClass) {
  MemberWatch watch;
  watch.start({});
  EXPECT_FALSE(watch.has_change());
  watch.note(true);
}

// Counts the hints of a member that changes in each of 200 steps.
int64_t hints_of_a_counter(bool has_effect) {
  Members members;
  MemberWatch watch = watch_of(members);
  int64_t hints = 0;
  for (int step = 0; step < 200; ++step) {
    ++members.calls;
    hints += watch.has_change();
    watch.note(has_effect);
  }
  return hints;
}

TEST(MemberWatch, SeldomReportsBytesThatChangeWithoutAnEffect) {
  EXPECT_EQ(hints_of_a_counter(true), 200);
  // The first eight changes, and the 16th, 32nd, 64th and 128th.
  EXPECT_EQ(hints_of_a_counter(false), 12);
}

TEST(MemberWatch, ReportsOtherBytesThanThoseOfACounter) {
  Members members;
  MemberWatch watch = watch_of(members);
  for (int step = 0; step < 20; ++step) {
    ++members.calls;
    watch.note(/*had_effect=*/false);
  }
  ++members.calls;
  EXPECT_FALSE(watch.has_change());
  members.scale = 3;
  EXPECT_TRUE(watch.has_change());
}

}  // namespace
}  // namespace lockstep
