#include "lockstep/base/fnv1a.h"

#include <gtest/gtest.h>

namespace lockstep {
namespace {

// The vectors of RFC 9923, appendix C, for 64 bits.
TEST(Fnv1a, GivesTheVectorsOfTheStandard) {
  EXPECT_EQ(Fnv1a().value(), 0xcbf29ce484222325U);
  Fnv1a one;
  one.add("a");
  EXPECT_EQ(one.value(), 0xaf63dc4c8601ec8cU);
  Fnv1a pieces;
  pieces.add("foo");
  pieces.add("bar");
  EXPECT_EQ(pieces.value(), 0x85944171f73967e8U);
}

}  // namespace
}  // namespace lockstep
