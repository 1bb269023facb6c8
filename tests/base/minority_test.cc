#include "lockstep/base/minority.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

namespace lockstep {
namespace {

using testing::ElementsAre;
using testing::IsEmpty;

TEST(Minority, IsWhoDiffersFromMoreThanHalf) {
  EXPECT_THAT(minority({"a", "b", "a"}), ElementsAre(1));
  EXPECT_THAT(minority({"b", "a", "a", "c", "a"}), ElementsAre(0, 3));
}

TEST(Minority, IsEmptyIfNoTextIsThatOfMoreThanHalf) {
  EXPECT_THAT(minority({"a", "b"}), IsEmpty());
  EXPECT_THAT(minority({"a", "b", "a", "b"}), IsEmpty());
  EXPECT_THAT(minority({"a", "b", "c"}), IsEmpty());
}

TEST(Minority, IsEmptyIfAllAreEqual) {
  EXPECT_THAT(minority({"a", "a"}), IsEmpty());
  EXPECT_THAT(minority({}), IsEmpty());
}

}  // namespace
}  // namespace lockstep
