#include "lockstep/base/error.h"

#include <gtest/gtest.h>

namespace lockstep {
namespace {

TEST(Error, SaysWhatWasExpectedAndFound) {
  const DataError error({.what = "a.bin is truncated",
                         .expected = "30730000 bytes",
                         .got = "100",
                         .fix = "fetch it again"});
  EXPECT_STREQ(error.what(),
               "[data] a.bin is truncated; expected 30730000 bytes, got 100; "
               "fetch it again");
}

TEST(Error, LeavesOutWhatIsEmpty) {
  EXPECT_STREQ(IoError({.what = "x"}).what(), "[io] x");
  EXPECT_STREQ(IoError({.what = "x", .got = "y"}).what(), "[io] x; got y");
  EXPECT_STREQ(IoError({.what = "x", .expected = "y"}).what(),
               "[io] x; expected y");
  EXPECT_STREQ(IoError({.what = "x", .fix = "z"}).what(), "[io] x; z");
}

TEST(Error, IsCaughtByItsBase) {
  EXPECT_THROW(throw InvalidArgument("cli", {.what = "x"}), Error);
  EXPECT_THROW(throw TrainError({.what = "x"}), std::runtime_error);
}

}  // namespace
}  // namespace lockstep
