#include <cstdlib>

#include <gtest/gtest.h>

#include "lockstep/base/error.h"
#include "lockstep/data/datasets.h"
#include "tests/base/expect_problem.h"
#include "tests/base/temporary_folder.h"
#include "tests/data/idx_bytes.h"
#include "tests/data/image_of.h"

namespace lockstep::data {
namespace {

constexpr size_t kDigitBytes = 28 * 28;

std::string digits(uint32_t count) {
  std::string bytes(count * kDigitBytes, '\0');
  for (size_t i = 0; i < bytes.size(); ++i) {
    bytes[i] = static_cast<char>(i * 7 + i / kDigitBytes);
  }
  return bytes;
}

// Writes a folder with three training images and two test images.
void write_mnist(const TemporaryFolder& folder) {
  write_text(folder.path("train-images-idx3-ubyte"),
             idx_bytes({3, 28, 28}, digits(3)));
  write_text(folder.path("train-labels-idx1-ubyte"),
             idx_bytes({3}, std::string("\5\0\11", 3)));
  write_text(folder.path("t10k-images-idx3-ubyte"),
             idx_bytes({2, 28, 28}, digits(2)));
  write_text(folder.path("t10k-labels-idx1-ubyte"), idx_bytes({2}, "\1\2"));
}

void gzip(const std::string& path) {
  ASSERT_EQ(std::system(("gzip " + path).c_str()), 0);
}

void expect_refused(const TemporaryFolder& folder,
                    const std::vector<std::string>& names) {
  expect_problem(
      error_of<DataError>([&] { mnist(folder.path(), Split::kTrain); }),
      ErrorCode::kMalformedData, names);
}

TEST(Mnist, ReadsPlainAndPackedFiles) {
  const TemporaryFolder folder;
  write_mnist(folder);
  gzip(folder.path("train-images-idx3-ubyte"));
  gzip(folder.path("t10k-labels-idx1-ubyte"));
  const auto train = mnist(folder.path(), Split::kTrain);
  ASSERT_EQ(train->size(), 3);
  EXPECT_EQ(train->channels(), 1);
  EXPECT_EQ(train->height(), 28);
  EXPECT_EQ(train->width(), 28);
  EXPECT_EQ(train->classes(), 10);
  EXPECT_EQ(train->label(0), 5);
  EXPECT_EQ(train->label(2), 9);
  const auto image = image_of(*train, 2);
  const std::string expected = digits(3).substr(2 * kDigitBytes);
  EXPECT_EQ(std::string(image.begin(), image.end()), expected);
  EXPECT_EQ(mnist(folder.path(), Split::kTest)->label(1), 2);
}

TEST(Mnist, MirrorsClothesAndNoDigits) {
  const TemporaryFolder folder;
  write_mnist(folder);
  EXPECT_FALSE(mnist(folder.path(), Split::kTrain)->may_be_mirrored());
  const auto clothes = fashion_mnist(folder.path(), Split::kTrain);
  EXPECT_TRUE(clothes->may_be_mirrored());
  EXPECT_FLOAT_EQ(clothes->mean()[0], 0.2860f);
}

TEST(Mnist, TellsWhereTorchvisionHasTheFiles) {
  const TemporaryFolder folder;
  expect_refused(folder, {folder.path(), "train-images-idx3-ubyte",
                          "lockstep "
                          "data mnist"});
  std::filesystem::create_directories(folder.path("MNIST/raw"));
  expect_refused(folder, {folder.path(), "MNIST/raw"});
}

TEST(Mnist, RefusesFilesThatDoNotFit) {
  const TemporaryFolder folder;
  write_mnist(folder);
  const std::string labels = folder.path("train-labels-idx1-ubyte");
  write_text(labels, idx_bytes({2}, "\1\2"));
  expect_refused(folder, {labels, "3 images and 2 labels"});
  write_text(labels, idx_bytes({3}, "\1\2\12"));
  expect_refused(folder, {labels, "image 2", "10"});
}

TEST(Mnist, RefusesWhatIsNoSuchArray) {
  const TemporaryFolder folder;
  write_mnist(folder);
  const std::string images = folder.path("train-images-idx3-ubyte");
  const std::string whole = idx_bytes({3, 28, 28}, digits(3));
  const std::vector<std::pair<std::string, std::string>> cases{
      {"", "at its beginning"},
      {"<html>", "3c 68"},
      {idx_bytes({3}, "\1\2\3"), "00 00 08 01"},
      {whole.substr(0, 10), "the end of the file"},
      {whole.substr(0, whole.size() - 1), "fewer"},
      {whole + "x", "more"},
      {idx_bytes({3, 28, 29}, digits(4)), "29"},
      {idx_bytes({1'000'001, 28, 28}, ""), "1000001 x 28 x 28"},
      {idx_bytes({0xffffffff, 28, 28}, ""), "4294967295"},
      {idx_bytes({0, 28, 28}, ""), "0 images"}};
  for (const auto& [bytes, name] : cases) {
    write_text(images, bytes);
    expect_refused(folder, {images, name});
  }
}

TEST(Mnist, RefusesADamagedPackedFile) {
  const TemporaryFolder folder;
  write_mnist(folder);
  const std::string images = folder.path("train-images-idx3-ubyte");
  gzip(images);
  const std::string packed = content_of(images + ".gz");
  // Truncated at any place, including the checksum at the end.
  for (size_t size = 20; size < packed.size(); size += 13) {
    write_text(images + ".gz", packed.substr(0, size));
    expect_refused(folder, {images + ".gz"});
  }
  write_text(images + ".gz", packed.substr(0, packed.size() - 1));
  expect_refused(folder, {images + ".gz"});
  std::string changed = packed;
  changed[changed.size() - 6] ^= 1;  // in the checksum
  write_text(images + ".gz", changed);
  expect_refused(folder, {images + ".gz"});
}

TEST(Mnist, UnpacksNoMoreThanAnArrayHas) {
  const TemporaryFolder folder;
  write_mnist(folder);
  const std::string images = folder.path("train-images-idx3-ubyte");
  // 256 MB of zeros, compressed to 0.3 MB, after the header of three images.
  write_text(images, idx_bytes({3, 28, 28}, digits(3)));
  ASSERT_EQ(std::system(("head -c 256M /dev/zero >> " + images).c_str()), 0);
  gzip(images);
  expect_refused(folder, {images + ".gz", "more"});
}

}  // namespace
}  // namespace lockstep::data
