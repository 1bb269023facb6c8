#include <cstdint>
#include <limits>
#include <memory>
#include <vector>

#include <gtest/gtest.h>

#include "lockstep/base/error.h"
#include "lockstep/lm/text/token_sources.h"

namespace lockstep::data::tokens_out_of_range_test {
namespace {

constexpr int64_t kLowest = std::numeric_limits<int64_t>::min();
constexpr int64_t kHighest = std::numeric_limits<int64_t>::max();

TEST(TokensOutOfRange, AreRefused) {
  const auto tokens =
      std::make_shared<TokenBuffer>(std::vector<uint32_t>{1, 2, 3, 4});
  const TokenRange range(tokens, 1, 3);
  std::vector<int64_t> out(2);
  for (const int64_t begin : {int64_t{-1}, int64_t{3}, kLowest, kHighest}) {
    EXPECT_THROW(tokens->read(begin, out), InvalidArgument) << begin;
    EXPECT_THROW(range.read(begin, out), InvalidArgument) << begin;
  }
  // The other source has this token, but the range doesn't.
  EXPECT_THROW(range.read(1, out), InvalidArgument);
  range.read(0, out);
  EXPECT_EQ(out, (std::vector<int64_t>{2, 3}));
  EXPECT_NO_THROW(range.read(2, {}));
}

}  // namespace
}  // namespace lockstep::data::tokens_out_of_range_test
