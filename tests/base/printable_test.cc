#include "lockstep/base/printable.h"

#include <gtest/gtest.h>

namespace lockstep {
namespace {

constexpr size_t kMax = 100;

TEST(Printable, RemovesWhatControlsATerminal) {
  EXPECT_EQ(printable("a\x1b[31mb\x07\t\n", kMax), "a?[31mb?\t\n");
  // U+009B is ESC [ in one character.
  EXPECT_EQ(printable("a\u009b1m", kMax), "a?1m");
  EXPECT_EQ(printable("a\x7f\u0085", kMax), "a??");
  EXPECT_EQ(printable("gr\u00fc\u00df \u4e16\U0001f600", kMax),
            "gr\u00fc\u00df \u4e16\U0001f600");
  EXPECT_EQ(printable("abcdef", 3), "abc [...]");
}

TEST(Printable, RemovesWhatChangesTheDirectionOfText) {
  for (const char* mark : {"\u061c", "\u200e", "\u200f", "\u202a", "\u202e",
                           "\u2066", "\u2069", "\u2028", "\u2029"}) {
    EXPECT_EQ(printable(std::string(mark) + "abc", kMax), "?abc");
  }
}

TEST(Printable, RemovesWhatIsNotUtf8) {
  EXPECT_EQ(printable("\xff\xc3", kMax), "??");
  EXPECT_EQ(printable("\xc0\x9b", kMax), "??");       // ESC, overlong
  EXPECT_EQ(printable("\xe0\x82\x9b", kMax), "???");  // U+009B, overlong
  // half of a surrogate pair
  EXPECT_EQ(printable("\xed\xa0\x80", kMax), "???");
  EXPECT_EQ(printable("\xf4\x90\x80\x80", kMax), "????");  // beyond Unicode
}

TEST(Printable, MayBeKeptToOneLine) {
  EXPECT_EQ(printable_line("a\nb\tc\x1b", kMax), "a?b?c?");
}

}  // namespace
}  // namespace lockstep
