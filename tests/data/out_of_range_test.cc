#include <cstdint>
#include <limits>
#include <vector>

#include <gtest/gtest.h>

#include "lockstep/base/error.h"
#include "lockstep/data/dataset.h"
#include "lockstep/data/image_source.h"

namespace lockstep::data::out_of_range_test {
namespace {

constexpr int64_t kLowest = std::numeric_limits<int64_t>::min();
constexpr int64_t kHighest = std::numeric_limits<int64_t>::max();

TEST(ImagesOutOfRange, AreRefusedWhoeverAsks) {
  const auto dataset = open({.samples = 20}, Split::kTrain);
  std::vector<uint8_t> image(dataset->image_bytes());
  const ImageSource source(dataset);
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

}  // namespace
}  // namespace lockstep::data::out_of_range_test
