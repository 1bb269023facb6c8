#include <cmath>
#include <string>
#include <thread>
#include <vector>

#include <gtest/gtest.h>

#include "lockstep/base/checksum.h"
#include "lockstep/base/error.h"
#include "lockstep/data/datasets.h"
#include "tests/base/expect_problem.h"
#include "tests/base/temporary_folder.h"
#include "tests/data/image_of.h"

namespace lockstep::data {
namespace {

std::string digest(const Dataset& dataset, int64_t images) {
  Sha256 sha256;
  for (int64_t i = 0; i < images; ++i) {
    const auto image = image_of(dataset, i);
    sha256.add(std::as_bytes(std::span(image)));
    sha256.add(std::to_string(dataset.label(i)));
  }
  return sha256.hex();
}

TEST(Synthetic, HasTheSizesItDocuments) {
  EXPECT_EQ(synthetic(0, 0, Split::kTrain)->size(), 10'000);
  EXPECT_EQ(synthetic(0, 0, Split::kTest)->size(), 2'000);
  EXPECT_EQ(synthetic(0, 100, Split::kTrain)->size(), 100);
  EXPECT_EQ(synthetic(0, 100, Split::kTest)->size(), 20);
  EXPECT_EQ(synthetic(0, 1, Split::kTest)->size(), 1);
}

TEST(Synthetic, RefusesSizesOutOfReach) {
  for (const int64_t samples : {int64_t{-1}, int64_t{1'000'001}}) {
    expect_problem(error_of<InvalidArgument>(
                       [&] { synthetic(0, samples, Split::kTrain); }),
                   ErrorCode::kBadOption, {std::to_string(samples)});
  }
}

TEST(Synthetic, IsOfTheSameBytesOnEveryMachine) {
  EXPECT_EQ(digest(*synthetic(1, 100, Split::kTrain), 100),
            "6ea74a38de4d9395aeca8d7b117f07fd60289bb2e3be5b99105bb8c9eba49e92");
}

TEST(Synthetic, ImageDependsOnSeedSplitAndIndexAlone) {
  const auto few = synthetic(7, 20, Split::kTrain);
  EXPECT_EQ(digest(*few, 20), digest(*synthetic(7, 3000, Split::kTrain), 20));
  EXPECT_NE(digest(*few, 20), digest(*synthetic(8, 20, Split::kTrain), 20));
  EXPECT_NE(digest(*few, 20), digest(*synthetic(7, 100, Split::kTest), 20));
}

TEST(Synthetic, GivesThreadsThatReadAtTheSameTimeTheSameBytes) {
  const auto dataset = synthetic(1, 300, Split::kTrain);
  std::vector<std::string> digests(4);
  std::vector<std::thread> readers;
  for (std::string& read : digests) {
    readers.emplace_back([&] { read = digest(*dataset, 300); });
  }
  for (std::thread& reader : readers) reader.join();
  const auto other = synthetic(1, 300, Split::kTrain);
  EXPECT_EQ(digests, std::vector<std::string>(4, digest(*other, 300)));
}

TEST(Synthetic, HasEveryClassAsOften) {
  const auto dataset = synthetic(3, 500, Split::kTrain);
  std::vector<int> counts(10);
  for (int64_t i = 0; i < 500; ++i) ++counts[dataset->label(i)];
  EXPECT_EQ(counts, std::vector<int>(10, 50));
}

TEST(Synthetic, HasTheMeanAndDeviationThatItNames) {
  const auto dataset = synthetic(5, 2000, Split::kTrain);
  for (int64_t c = 0; c < 3; ++c) {
    double sum = 0;
    double squares = 0;
    for (int64_t i = 0; i < dataset->size(); ++i) {
      const auto image = image_of(*dataset, i);
      for (const uint8_t value : std::span(image).subspan(c * 1024, 1024)) {
        sum += value / 255.0;
        squares += value / 255.0 * (value / 255.0);
      }
    }
    const double count = static_cast<double>(dataset->size()) * 1024;
    const double mean = sum / count;
    EXPECT_NEAR(mean, dataset->mean()[c], 0.01);
    EXPECT_NEAR(std::sqrt(squares / count - mean * mean), dataset->stddev()[c],
                0.01);
  }
}

TEST(Synthetic, SaysNothingOfTheClassByItsHue) {
  const auto dataset = synthetic(5, 5000, Split::kTrain);
  std::vector<double> redness(10);
  std::vector<double> blueness(10);
  for (int64_t i = 0; i < dataset->size(); ++i) {
    const auto image = image_of(*dataset, i);
    for (size_t pixel = 0; pixel < 1024; ++pixel) {
      const double green = image[1024 + pixel];
      redness[dataset->label(i)] += (image[pixel] - green) / 1024 / 500;
      blueness[dataset->label(i)] += (image[2048 + pixel] - green) / 1024 / 500;
    }
  }
  // Means of 500 images with a deviation of about 40: 5 standard deviations.
  for (int label = 0; label < 10; ++label) {
    EXPECT_NEAR(redness[label], 0, 9) << label;
    EXPECT_NEAR(blueness[label], 0, 9) << label;
  }
}

}  // namespace
}  // namespace lockstep::data
