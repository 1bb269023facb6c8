#include <numeric>
#include <set>
#include <vector>

#include <gtest/gtest.h>
#include <torch/types.h>

#include "lockstep/lm/text/token_sources.h"
#include "lockstep/lm/text/tokens.h"
#include "tests/base/error_code_of.h"

namespace lockstep::data {
namespace {

// Token i is i, so a window shows where it was cut.
std::shared_ptr<const TokenSource> counting(int64_t size) {
  std::vector<uint32_t> tokens(static_cast<size_t>(size));
  std::iota(tokens.begin(), tokens.end(), 0u);
  return std::make_shared<TokenBuffer>(std::move(tokens));
}

Batch all_of(const TokenWindows& windows, int64_t epoch) {
  std::vector<int64_t> indices(static_cast<size_t>(windows.size()));
  std::iota(indices.begin(), indices.end(), int64_t{0});
  return windows.read(indices, epoch);
}

TEST(TokenWindows, HaveTheNextTokenAsTarget) {
  const TokenWindows windows(counting(21),
                             TokenWindowOptions().context(5).vocabulary(21));
  EXPECT_EQ(windows.size(), 4);
  const std::vector<int64_t> indices{3, 0};
  const Batch batch = windows.read(indices, 0);
  EXPECT_EQ(batch.samples, 2);
  EXPECT_TRUE(batch.data.equal(
      torch::tensor({{15, 16, 17, 18, 19}, {0, 1, 2, 3, 4}}, torch::kInt64)));
  EXPECT_TRUE(batch.target.equal(batch.data + 1));
}

// For all sizes, no token is a target twice, and less than a window is left out
// at each end.
TEST(TokenWindows, CoverAnEpochWithoutOverlap) {
  for (const int64_t context : {1, 2, 7, 16}) {
    for (int64_t size = 2 * context; size < 5 * context + 3; ++size) {
      for (const bool shift : {false, true}) {
        const TokenWindows windows(counting(size), TokenWindowOptions()
                                                       .context(context)
                                                       .vocabulary(size)
                                                       .shift(shift)
                                                       .seed(9));
        for (const int64_t epoch : {0, 1, 2}) {
          const auto targets = all_of(windows, epoch).target.flatten();
          const std::set<int64_t> seen(
              targets.data_ptr<int64_t>(),
              targets.data_ptr<int64_t>() + targets.numel());
          EXPECT_EQ(static_cast<int64_t>(seen.size()), targets.numel());
          EXPECT_LE(*seen.begin(), context);
          EXPECT_EQ(*seen.rbegin() - *seen.begin() + 1, targets.numel());
          EXPECT_LT(*seen.rbegin(), size);
          if (!shift) EXPECT_GE(*seen.rbegin() + context, size - 1);
        }
      }
    }
  }
}

TEST(TokenWindows, BeginElsewhereInEachEpoch) {
  const TokenWindows windows(
      counting(1000),
      TokenWindowOptions().context(64).vocabulary(1000).shift(true).seed(1));
  std::set<int64_t> begins;
  for (int64_t epoch = 0; epoch < 20; ++epoch) {
    begins.insert(all_of(windows, epoch).data[0][0].item<int64_t>());
    EXPECT_TRUE(all_of(windows, epoch).data.equal(all_of(windows, epoch).data));
  }
  EXPECT_GT(begins.size(), 10u);
}

TEST(TokenWindows, RefuseTooFewTokensAndUnknownOnes) {
  const auto make = [](int64_t size, int64_t context, bool shift) {
    return error_code_of([&] {
      const TokenWindows windows(
          counting(size),
          TokenWindowOptions().context(context).vocabulary(size).shift(shift));
    });
  };
  EXPECT_EQ(make(5, 5, false), ErrorCode::kBadOption);
  EXPECT_EQ(make(6, 5, false), std::nullopt);
  EXPECT_EQ(make(9, 5, true), ErrorCode::kBadOption);
  EXPECT_EQ(make(10, 5, true), std::nullopt);
  EXPECT_EQ(make(10, 0, false), ErrorCode::kBadOption);
  const TokenWindows windows(counting(21),
                             TokenWindowOptions().context(5).vocabulary(20));
  const std::vector<int64_t> last{3};
  EXPECT_EQ(error_code_of([&] { windows.read(last, 0); }),
            ErrorCode::kMalformedData);
}

TEST(TokenRange, IsAPartOfAnother) {
  const TokenRange range(counting(100), 40, 60);
  EXPECT_EQ(range.size(), 20);
  std::vector<int64_t> read(3);
  range.read(5, read);
  EXPECT_EQ(read, (std::vector<int64_t>{45, 46, 47}));
  EXPECT_NE(range.fingerprint(),
            TokenRange(counting(100), 41, 61).fingerprint());
}

}  // namespace
}  // namespace lockstep::data
