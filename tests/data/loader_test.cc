#include "lockstep/data/loader.h"

#include <algorithm>
#include <numeric>
#include <stdexcept>

#include <gtest/gtest.h>

#include "lockstep/base/error.h"
#include "lockstep/data/image_source.h"
#include "lockstep/data/random_stream.h"
#include "lockstep/data/sample_writer.h"
#include "tests/base/expect_problem.h"
#include "tests/base/temporary_folder.h"
#include "tests/base/thread_limit.h"
#include "tests/data/image_of.h"

namespace lockstep::data {
namespace {

// Small images in which the value of every byte is known: pixel (c, y, x) of
// image i.
class Counting : public Dataset {
 public:
  static constexpr int64_t kSide = 8;

  explicit Counting(int64_t size) : size_(size) {
    height_ = width_ = kSide;
    bytes_.resize(static_cast<size_t>(size * 3 * kSide * kSide));
    for (size_t i = 0; i < bytes_.size(); ++i) {
      bytes_[i] = static_cast<uint8_t>(1 + i * 7 % 255);
    }
  }
  int64_t size() const override { return size_; }
  void read_checked(int64_t index, std::span<uint8_t> out) const override {
    if (index == broken_) throw std::runtime_error("image 13 is broken");
    std::copy_n(bytes_.begin() + index * 3 * kSide * kSide, out.size(),
                out.begin());
  }
  int64_t label_of(int64_t index) const override { return index; }
  void break_image(int64_t index) { broken_ = index; }
  void refuse_mirroring() { may_be_mirrored_ = false; }

 private:
  int64_t size_;
  int64_t broken_ = -1;
  std::vector<uint8_t> bytes_;
};

std::vector<Batch> rest_of(Loader& loader) {
  std::vector<Batch> batches;
  while (auto batch = loader.next()) batches.push_back(std::move(*batch));
  return batches;
}

std::shared_ptr<const BatchSource> images(int64_t size,
                                          const ImageOptions& options = {
                                              .augment = true}) {
  return std::make_shared<ImageSource>(std::make_shared<Counting>(size),
                                       options);
}

std::vector<Batch> epoch_of(const LoaderOptions& options, int64_t epoch,
                            int64_t first_batch = 0,
                            const ImageOptions& image_options = {
                                .augment = true}) {
  Loader loader(images(50, image_options), options);
  loader.begin(epoch, first_batch);
  return rest_of(loader);
}

void expect_same(const std::vector<Batch>& a, const std::vector<Batch>& b) {
  ASSERT_EQ(a.size(), b.size());
  for (size_t i = 0; i < a.size(); ++i) {
    EXPECT_TRUE(a[i].input().equal(b[i].input())) << "batch " << i;
    EXPECT_TRUE(a[i].target_tensor().equal(b[i].target_tensor()))
        << "batch " << i;
  }
}

std::vector<int64_t> labels_of(const std::vector<Batch>& batches) {
  std::vector<int64_t> labels;
  for (const Batch& batch : batches) {
    const torch::Tensor target = batch.target_tensor();
    const auto* data = target.const_data_ptr<int64_t>();
    labels.insert(labels.end(), data, data + target.numel());
  }
  return labels;
}

const LoaderOptions kRandom{.batch_size = 7, .shuffle = true};

TEST(Loader, GivesTheSameBitsForAnyNumberOfWorkers) {
  LoaderOptions options = kRandom;
  options.workers = 0;
  const auto expected = epoch_of(options, 3);
  ASSERT_EQ(expected.size(), 8u);
  for (const auto& [workers, prefetch] :
       std::vector<std::pair<int, int>>{{1, 1}, {1, 4}, {4, 1}, {4, 9}}) {
    options.workers = workers;
    options.prefetch = prefetch;
    expect_same(epoch_of(options, 3), expected);
  }
}

TEST(Loader, GivesEverySampleOncePerEpochInAnOrderOfItsOwn) {
  const auto first = labels_of(epoch_of(kRandom, 0));
  const auto second = labels_of(epoch_of(kRandom, 1));
  EXPECT_NE(first, second);
  std::vector<int64_t> all(50);
  std::iota(all.begin(), all.end(), 0);
  EXPECT_TRUE(std::is_permutation(first.begin(), first.end(), all.begin()));
  EXPECT_TRUE(std::is_permutation(second.begin(), second.end(), all.begin()));
  EXPECT_EQ(labels_of(epoch_of({.batch_size = 7}, 1)), all);
}

TEST(Loader, FollowsAnOrderOfTheUsers) {
  LoaderOptions options{.batch_size = 2};
  options.order = [](int64_t size, int64_t epoch) {
    return std::vector<int64_t>{size - 1, epoch, 0};
  };
  EXPECT_EQ(labels_of(epoch_of(options, 3)), (std::vector<int64_t>{49, 3, 0}));
  EXPECT_EQ(epoch_of(options, 3).size(), 2u);
  // There is no sample 50, and epoch 1 is longer than epoch 0.
  expect_problem(error_of<InvalidArgument>([&] { epoch_of(options, 50); }),
                 ErrorCode::kMisuse, {"49", "50"});
  options.order = [](int64_t, int64_t epoch) {
    return std::vector<int64_t>(static_cast<size_t>(epoch + 1), 0);
  };
  expect_problem(error_of<InvalidArgument>([&] { epoch_of(options, 1); }),
                 ErrorCode::kMisuse, {"1", "2"});
}

// Pads each sample to the longest in its batch. Sample i has length i + 1.
class Ragged : public BatchSource {
 public:
  int64_t size() const override { return 20; }
  bool reads_whole_batches() const override { return true; }
  Batch read(std::span<const int64_t> indices, int64_t) const override {
    const auto count = static_cast<int64_t>(indices.size());
    const int64_t longest = *std::max_element(indices.begin(), indices.end());
    torch::Tensor padded = torch::zeros({count, longest + 1});
    for (int64_t i = 0; i < count; ++i) {
      padded[i].narrow(0, 0, indices[static_cast<size_t>(i)] + 1).fill_(1);
    }
    return {.inputs = {c10::ivalue::Tuple::create({padded, padded.sum(1)})},
            .target = padded.sum(1),
            .samples = count};
  }
};

TEST(Loader, CutsAPartOutOfABatchThatIsOnlyKnownAsAWhole) {
  const auto batch_of = [](BatchPart part) {
    LoaderOptions options{.batch_size = 10, .part = part, .shuffle = true};
    Loader loader(std::make_shared<Ragged>(), options);
    loader.begin(0);
    return loader.next().value();
  };
  const Batch whole = batch_of({});
  EXPECT_EQ(whole.total, 10);
  for (int64_t shard = 0; shard < 4; ++shard) {
    const Batch part =
        batch_of({.shards = 4, .first = shard, .last = shard + 1});
    const int64_t first = shard * 3;
    EXPECT_EQ(part.total, 10);
    EXPECT_EQ(part.samples, shard < 3 ? 3 : 1);
    EXPECT_TRUE(part.target_tensor().equal(
        whole.target_tensor().narrow(0, first, part.samples)));
    for (const size_t i : {0u, 1u}) {
      const auto tensor_of = [&](const Batch& batch) {
        return batch.inputs[0].toTupleRef().elements()[i].toTensor();
      };
      EXPECT_TRUE(tensor_of(part).equal(
          tensor_of(whole).narrow(0, first, part.samples)));
    }
  }
}

TEST(Loader, DependsOnTheSeed) {
  LoaderOptions other = kRandom;
  other.seed = 1;
  EXPECT_NE(labels_of(epoch_of(kRandom, 0)), labels_of(epoch_of(other, 0)));
}

TEST(Loader, ResumesAtABatch) {
  auto whole = epoch_of(kRandom, 2);
  whole.erase(whole.begin(), whole.begin() + 5);
  expect_same(epoch_of(kRandom, 2, 5), whole);
  EXPECT_TRUE(epoch_of(kRandom, 2, 8).empty());
  EXPECT_TRUE(epoch_of(kRandom, 2, 800).empty());
}

TEST(Loader, BeginsAnewInTheMiddleOfAnEpoch) {
  LoaderOptions options = kRandom;
  options.workers = 3;
  Loader loader(images(50), options);
  const auto expected = epoch_of(kRandom, 4);
  for (int i = 0; i < 200; ++i) {
    loader.begin(i);
    for (int taken = 0; taken < i % 4; ++taken) loader.next();
  }
  loader.begin(4);
  expect_same(rest_of(loader), expected);
}

TEST(Loader, DropsTheLastBatchIfItIsShort) {
  LoaderOptions options{.batch_size = 7, .drop_last = true};
  EXPECT_EQ(epoch_of(options, 0).size(), 7u);
  options.drop_last = false;
  const auto batches = epoch_of(options, 0);
  ASSERT_EQ(batches.size(), 8u);
  EXPECT_EQ(batches.back().input().size(0), 1);
}

TEST(Loader, NormalisesAsTorchvisionDoes) {
  const Counting dataset(2);
  const auto batch = epoch_of({.batch_size = 50}, 0, 0, {}).at(0);
  auto image = image_of(dataset, 1);
  const torch::Tensor bytes = torch::from_blob(
      image.data(), {3, Counting::kSide, Counting::kSide}, torch::kUInt8);
  const auto per_channel = [](const std::vector<float>& values) {
    return torch::tensor(values).reshape({3, 1, 1});
  };
  const torch::Tensor expected =
      (bytes.to(torch::kFloat32) / 255 - per_channel(dataset.mean())) /
      per_channel(dataset.stddev());
  EXPECT_TRUE(batch.input()[1].equal(expected));
}

TEST(Loader, LaysOutChannelsLastWithTheSameValues) {
  const auto last =
      epoch_of(kRandom, 0, 0, {.augment = true, .channels_last = true});
  EXPECT_TRUE(last[0].input().is_contiguous(torch::MemoryFormat::ChannelsLast));
  expect_same(last, epoch_of(kRandom, 0));
}

// Augments as torchvision does: pad the image with black, cut, mirror.
torch::Tensor augmented(const torch::Tensor& normalised_black,
                        const torch::Tensor& image,
                        const Augmentation& augmentation) {
  torch::Tensor padded =
      normalised_black.expand({3, image.size(1) + 8, image.size(2) + 8})
          .clone();
  padded.slice(1, 4, 4 + image.size(1))
      .slice(2, 4, 4 + image.size(2))
      .copy_(image);
  const torch::Tensor cut =
      padded.slice(1, augmentation.down, augmentation.down + image.size(1))
          .slice(2, augmentation.right, augmentation.right + image.size(2));
  return augmentation.is_mirrored ? cut.flip(2) : cut;
}

TEST(Augmentation, ShiftsAndMirrorsTheImageOverBlack) {
  const Counting dataset(1);
  const SampleWriter writer(dataset, PixelOrder::kPlanes);
  const auto written = [&](std::span<const uint8_t> image,
                           const Augmentation& augmentation) {
    torch::Tensor out = torch::empty({3, Counting::kSide, Counting::kSide});
    writer.write(
        image, augmentation,
        std::span(out.data_ptr<float>(), static_cast<size_t>(out.numel())));
    return out;
  };
  const std::vector<uint8_t> black(3 * Counting::kSide * Counting::kSide);
  const torch::Tensor ground = written(black, {}).slice(1, 0, 1).slice(2, 0, 1);
  const torch::Tensor plain = written(image_of(dataset, 0), {});
  for (int64_t down = 0; down <= 8; ++down) {
    for (int64_t right = 0; right <= 8; ++right) {
      for (const bool is_mirrored : {false, true}) {
        const Augmentation augmentation{down, right, is_mirrored};
        EXPECT_TRUE(written(image_of(dataset, 0), augmentation)
                        .equal(augmented(ground, plain, augmentation)))
            << down << ", " << right << ", " << is_mirrored;
      }
    }
  }
}

TEST(Augmentation, UsesEveryShiftAndMirrorsHalf) {
  std::vector<int> downs(9), rights(9);
  int mirrored = 0;
  constexpr int kSamples = 9000;
  for (int64_t index = 0; index < kSamples; ++index) {
    const Augmentation augmentation = random_augmentation(1, 2, index);
    ++downs.at(static_cast<size_t>(augmentation.down));
    ++rights.at(static_cast<size_t>(augmentation.right));
    mirrored += augmentation.is_mirrored ? 1 : 0;
  }
  for (int i = 0; i < 9; ++i) {
    EXPECT_NEAR(downs[i], kSamples / 9, 150);
    EXPECT_NEAR(rights[i], kSamples / 9, 150);
  }
  EXPECT_NEAR(mirrored, kSamples / 2, 250);
}

TEST(ShuffledOrder, PutsEverySampleAnywhereAsOften) {
  constexpr int kSize = 6;
  constexpr int kEpochs = 12'000;
  std::vector<std::vector<int>> counts(kSize, std::vector<int>(kSize));
  for (int64_t epoch = 0; epoch < kEpochs; ++epoch) {
    const auto order = shuffled_order(kSize, 5, epoch);
    for (size_t i = 0; i < kSize; ++i) ++counts[i][order[i]];
  }
  for (const auto& of_place : counts) {
    for (const int count : of_place) EXPECT_NEAR(count, kEpochs / kSize, 220);
  }
}

TEST(Loader, RethrowsWhatAWorkerThrew) {
  for (const int workers : {0, 1, 4}) {
    auto dataset = std::make_shared<Counting>(50);
    dataset->break_image(13);
    Loader loader(dataset, {.batch_size = 10, .workers = workers});
    loader.begin(0);
    EXPECT_TRUE(loader.next());
    EXPECT_PRED2(contains, error_of<std::runtime_error>([&] { loader.next(); }),
                 "image 13 is broken");
    EXPECT_TRUE(loader.next());
  }
}

TEST(Loader, StopsWithBatchesAheadOrNoneAsked) {
  for (int i = 0; i < 50; ++i) {
    LoaderOptions options = kRandom;
    options.workers = 1 + i % 4;
    Loader loader(images(50), options);
    if (i % 3 > 0) loader.begin(i);
    if (i % 3 > 1) loader.next();
  }
}

TEST(Loader, MirrorsNoImageThatWouldBeOfAnotherClass) {
  auto digits = std::make_shared<Counting>(200);
  digits->refuse_mirroring();
  const ImageSource source(digits, {.augment = true, .seed = 3});
  const SampleWriter writer(*digits, PixelOrder::kPlanes);
  int mirrored = 0;
  for (int64_t i = 0; i < digits->size(); ++i) {
    Augmentation augmentation = random_augmentation(3, 0, i);
    mirrored += augmentation.is_mirrored ? 1 : 0;
    augmentation.is_mirrored = false;
    std::vector<float> expected(digits->image_bytes());
    writer.write(image_of(*digits, i), augmentation, expected);
    const torch::Tensor read = source.read(std::array{i}, 0).input();
    EXPECT_TRUE(read.flatten().equal(torch::tensor(expected))) << i;
  }
  EXPECT_GT(mirrored, 50);  // images that would have been mirrored
}

TEST(Loader, RefusesWhatCannotBe) {
  const auto dataset = std::make_shared<Counting>(5);
  const auto message = [&](std::shared_ptr<const Dataset> of,
                           const LoaderOptions& options) {
    return error_of<InvalidArgument>([&] { Loader loader(of, options); });
  };
  expect_problem(message(nullptr, {}), ErrorCode::kMisuse, {});
  expect_problem(message(std::make_shared<Counting>(0), {}), ErrorCode::kMisuse,
                 {"0"});
  expect_problem(message(dataset, {.batch_size = 0}), ErrorCode::kMisuse,
                 {"batch", "0"});
  expect_problem(message(dataset, {.workers = -1}), ErrorCode::kMisuse,
                 {"workers", "-1"});
  expect_problem(message(dataset, {.prefetch = 0}), ErrorCode::kMisuse,
                 {"prefetch", "0"});
  expect_problem(message(dataset, {.batch_size = 6, .drop_last = true}),
                 ErrorCode::kMisuse, {"5", "6"});
  Loader loader(dataset, {});
  EXPECT_THROW(loader.begin(0, -1), InvalidArgument);
  expect_problem(error_of<InvalidArgument>([&] { loader.next(); }),
                 ErrorCode::kMisuse, {"begin()", "next()"});
}

TEST(Dataset, SuggestsTheNearestName) {
  expect_problem(
      error_of<InvalidArgument>([] { open({.name = "cifar"}, Split::kTrain); }),
      ErrorCode::kUnknownName, {"'cifar'", "cifar10"});
  EXPECT_EQ(open({.samples = 10}, Split::kTrain)->size(), 10);
}

TEST(Loader, SaysThatItCanStartNoMoreWorkers) {
  EXPECT_EXIT(exit_without_threads([] {
                LoaderOptions options;
                options.batch_size = 4;
                options.workers = 64;
                Loader(std::make_shared<Counting>(8), options);
              }),
              testing::ExitedWithCode(0), "for a worker of the loader");
}

}  // namespace
}  // namespace lockstep::data
