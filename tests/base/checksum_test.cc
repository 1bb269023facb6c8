#include "lockstep/base/checksum.h"

#include <gtest/gtest.h>

namespace lockstep {
namespace {

// What the package's xxh128sum prints.
TEST(Checksum, IsThatOfXxh128sum) {
  EXPECT_EQ(checksum_of(""), "99aa06d3014798d86001c324468d497f");
  EXPECT_EQ(checksum_of("abc"), "06b05ab6733a618578af5f94892f3950");
}

TEST(Checksum, DoesNotDependOnThePieces) {
  std::string text;
  for (int i = 0; i < 5000; ++i) text += static_cast<char>(i * 7);
  Checksum pieces;
  for (size_t at = 0; at < text.size(); at += 37) {
    pieces.add(std::string_view(text).substr(at, 37));
  }
  EXPECT_EQ(pieces.hex(), checksum_of(text));
}

}  // namespace
}  // namespace lockstep
