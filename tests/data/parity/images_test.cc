// Tier: nightly, by case. Each case loads torchvision.
#include <algorithm>
#include <cstdlib>
#include <cstring>
#include <filesystem>

#include <gtest/gtest.h>
#include <nlohmann/json.hpp>

#include "lockstep/data/datasets.h"
#include "lockstep/data/images/decode_image.h"
#include "tests/base/temporary_folder.h"
#include "tests/checkpoint/python.h"
#include "tests/data/image_of.h"

namespace lockstep::data {
namespace {

// The output of images.py. Made once, because it takes seconds.
class ImagesAndTorchvision : public testing::Test {
 protected:
  static void SetUpTestSuite() {
    if (!python_has("torchvision")) return;
    folder_ = new TemporaryFolder();
    run_python_file(LOCKSTEP_SOURCE_DIR "/tests/data/parity/images.py",
                    {folder_->path()});
  }
  static void TearDownTestSuite() { delete folder_; }
  void SetUp() override {
    if (folder_ == nullptr) {
      GTEST_SKIP() << "the Python package torchvision is not there";
    }
  }

  // `name` is a file with all images, and then one byte for each label.
  static void expect_same(const Dataset& dataset, const std::string& name) {
    const std::string expected = content_of(folder_->path(name));
    std::string read;
    for (int64_t i = 0; i < dataset.size(); ++i) {
      const auto image = image_of(dataset, i);
      read.append(image.begin(), image.end());
    }
    for (int64_t i = 0; i < dataset.size(); ++i) {
      read += static_cast<char>(dataset.label(i));
    }
    EXPECT_GT(dataset.size(), 10);
    EXPECT_TRUE(read == expected) << name;
  }

  static inline TemporaryFolder* folder_ = nullptr;
};

// The pixels are equal, not only similar. PNG is lossless, and Pillow decodes
// JPEG with the same settings and another release of the same library.
TEST_F(ImagesAndTorchvision, DecodeToTheSamePixels) {
  int images = 0;
  for (const auto& entry :
       std::filesystem::directory_iterator(folder_->path("decoded"))) {
    const std::string path = entry.path().string();
    if (path.ends_with(".rgb")) continue;
    SCOPED_TRACE(path);
    const Image image = read_image(path);
    const std::string expected = content_of(path + ".rgb");
    uint32_t size[2];
    ASSERT_GT(expected.size(), sizeof(size));
    std::memcpy(size, expected.data(), sizeof(size));
    EXPECT_EQ(image.width, size[0]);
    EXPECT_EQ(image.height, size[1]);
    ASSERT_EQ(image.pixels.size() + sizeof(size), expected.size());
    int largest = 0;
    for (size_t i = 0; i < image.pixels.size(); ++i) {
      largest = std::max(
          largest, std::abs(image.pixels[i] -
                            static_cast<uint8_t>(expected[sizeof(size) + i])));
    }
    EXPECT_EQ(largest, 0);
    ++images;
  }
  EXPECT_GT(images, 30);
}

// Pillow resizes vertically before horizontally where that is faster, which
// changes the rounding of some bytes by one. Most images have the same bits.
TEST_F(ImagesAndTorchvision, ResizeAndCutToTheSameBytes) {
  for (const int64_t size : {8, 32, 50, 224}) {
    SCOPED_TRACE(size);
    const auto dataset = image_folder(folder_->path("tree"), Split::kTrain,
                                      size, /*warns=*/false);
    const std::string expected =
        content_of(folder_->path("tree_" + std::to_string(size) + ".bin"));
    ASSERT_EQ(static_cast<size_t>(dataset->size()) * dataset->image_bytes(),
              expected.size());
    int equal = 0;
    const char* at = expected.data();
    for (int64_t i = 0; i < dataset->size(); ++i) {
      int largest = 0;
      for (const uint8_t value : image_of(*dataset, i)) {
        const int other = static_cast<uint8_t>(*at++);
        largest = std::max(largest, std::abs(value - other));
      }
      EXPECT_LE(largest, 1) << "image " << i;
      equal += largest == 0 ? 1 : 0;
    }
    EXPECT_GT(equal, dataset->size() * 2 / 3);
  }
}

TEST_F(ImagesAndTorchvision, NumberTheClassesAlike) {
  for (const auto& [split, name] :
       {std::pair(Split::kTrain, "train"), std::pair(Split::kTest, "val")}) {
    const auto dataset =
        image_folder(folder_->path("tree"), split, 8, /*warns=*/false);
    const auto expected = nlohmann::json::parse(
        content_of(folder_->path(std::string("tree_") + name + ".json")));
    EXPECT_EQ(dataset->classes(), expected["classes"].size());
    std::vector<int64_t> labels;
    for (int64_t i = 0; i < dataset->size(); ++i) {
      labels.push_back(dataset->label(i));
    }
    EXPECT_EQ(labels, expected["labels"].get<std::vector<int64_t>>()) << name;
  }
}

TEST_F(ImagesAndTorchvision, ReadTheSameDigitsAndClothes) {
  const std::string digits = folder_->path("MNIST/raw");
  expect_same(*mnist(digits, Split::kTrain), "MNIST_train.bin");
  expect_same(*mnist(digits, Split::kTest), "MNIST_test.bin");
  const std::string clothes = folder_->path("FashionMNIST/raw");
  expect_same(*fashion_mnist(clothes, Split::kTrain), "FashionMNIST_train.bin");
  expect_same(*fashion_mnist(clothes, Split::kTest), "FashionMNIST_test.bin");
}

TEST_F(ImagesAndTorchvision, ReadTheSameCifar100) {
  const std::string dir = folder_->path("cifar100");
  expect_same(*cifar100(dir, Split::kTrain), "CIFAR100_train.bin");
  expect_same(*cifar100(dir, Split::kTest), "CIFAR100_test.bin");
}

}  // namespace
}  // namespace lockstep::data
