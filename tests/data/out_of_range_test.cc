#include <cstdint>
#include <limits>
#include <vector>

#include <gtest/gtest.h>

#include "lockstep/base/error.h"
#include "lockstep/data/dataset.h"
#include "lockstep/data/image_source.h"
#include "lockstep/data/text/token_buffer.h"
#include "lockstep/data/text/token_range.h"

// Samples that a dataset does not have are an error, whoever asks for them.
namespace lockstep::data::out_of_range_test {
namespace {

constexpr int64_t kLowest = std::numeric_limits<int64_t>::min();
constexpr int64_t kHighest = std::numeric_limits<int64_t>::max();

TEST(OutOfRange, ImagesAndLabelsAreRefused) {
  const auto dataset = open({.samples = 20}, Split::kTrain);
  std::vector<uint8_t> image(dataset->image_bytes());
  const ImageSource source(dataset, {});
  for (const int64_t index : {int64_t{-1}, int64_t{20}, kLowest, kHighest}) {
    EXPECT_THROW(dataset->read(index, image), InvalidArgument) << index;
    EXPECT_THROW(dataset->label(index), InvalidArgument) << index;
    const std::vector<int64_t> indices{0, index};
    EXPECT_THROW(source.read(indices, 0), InvalidArgument) << index;
  }
  EXPECT_NO_THROW(dataset->read(19, image));
  image.pop_back();
  EXPECT_THROW(dataset->read(0, image), InvalidArgument);
}

TEST(OutOfRange, TokensAreRefused) {
  const auto tokens =
      std::make_shared<TokenBuffer>(std::vector<uint32_t>{1, 2, 3, 4});
  const TokenRange range(tokens, 1, 3);
  std::vector<int64_t> out(2);
  for (const int64_t begin : {int64_t{-1}, int64_t{3}, kLowest, kHighest}) {
    EXPECT_THROW(tokens->read(begin, out), InvalidArgument) << begin;
    EXPECT_THROW(range.read(begin, out), InvalidArgument) << begin;
  }
  // The other source has it; the range does not.
  EXPECT_THROW(range.read(1, out), InvalidArgument);
  range.read(0, out);
  EXPECT_EQ(out, (std::vector<int64_t>{2, 3}));
  EXPECT_NO_THROW(range.read(2, {}));
}

}  // namespace
}  // namespace lockstep::data::out_of_range_test
