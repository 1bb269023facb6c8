#include "lockstep/data/loader.h"

#include <algorithm>
#include <iterator>
#include <numeric>
#include <optional>
#include <ranges>
#include <stdexcept>
#include <tuple>
#include <utility>

#include <gtest/gtest.h>
#include <torch/data.h>
#include <torch/nn/utils/rnn.h>

#include "lockstep/base/error.h"
#include "lockstep/data/dataset_source.h"
#include "lockstep/data/image_source.h"
#include "lockstep/data/in_order.h"
#include "lockstep/data/random_stream.h"
#include "lockstep/data/sample_writer.h"
#include "tests/base/expect_problem.h"
#include "tests/base/run_in_child.h"
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

std::vector<Batch> epoch_of(Loader& loader) {
  std::vector<Batch> batches;
  for (Batch& batch : loader) batches.push_back(std::move(batch));
  return batches;
}

std::shared_ptr<const BatchSource> images(
    int64_t size, const ImageOptions& options = ImageOptions().augment(true)) {
  return std::make_shared<ImageSource>(std::make_shared<Counting>(size),
                                       options);
}

std::vector<Batch> epoch_of(
    const LoaderOptions& options, int64_t epoch, int64_t first_batch = 0,
    const ImageOptions& image_options = ImageOptions().augment(true)) {
  Loader loader(images(50, image_options), options);
  loader.set_epoch(epoch, first_batch);
  return epoch_of(loader);
}

void expect_same(const std::vector<Batch>& a, const std::vector<Batch>& b) {
  ASSERT_EQ(a.size(), b.size());
  for (size_t i = 0; i < a.size(); ++i) {
    EXPECT_TRUE(a[i].data.equal(b[i].data)) << "batch " << i;
    EXPECT_TRUE(a[i].target.equal(b[i].target)) << "batch " << i;
  }
}

std::vector<int64_t> labels_of(const std::vector<Batch>& batches) {
  std::vector<int64_t> labels;
  for (const Batch& batch : batches) {
    const torch::Tensor target = batch.target;
    const auto* data = target.const_data_ptr<int64_t>();
    labels.insert(labels.end(), data, data + target.numel());
  }
  return labels;
}

const auto kRandom = LoaderOptions().batch_size(7).shuffle(true);

TEST(Loader, HasNoWorkersInAForkedChild) {
  auto loader = std::make_unique<Loader>(
      images(50), LoaderOptions().batch_size(5).workers(2));
  auto batch = loader->begin();
  EXPECT_EQ(run_in_child([&] {
              try {
                ++batch;
              } catch (const InvalidArgument&) {
                loader.reset();
                return true;
              }
              return false;
            }),
            "");
  EXPECT_EQ(epoch_of(*loader).size(), 10);
}

TEST(Loader, GivesTheSameBitsForAnyNumberOfWorkers) {
  LoaderOptions options = kRandom;
  options.workers(0);
  const auto expected = epoch_of(options, 3);
  ASSERT_EQ(expected.size(), 8u);
  for (const auto& [workers, prefetch] :
       std::vector<std::pair<int, int>>{{1, 1}, {1, 4}, {4, 1}, {4, 9}}) {
    options.workers(workers).prefetch(prefetch);
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
  EXPECT_EQ(labels_of(epoch_of(LoaderOptions().batch_size(7), 1)), all);
}

TEST(Loader, FollowsAnOrderOfTheUsers) {
  auto options =
      LoaderOptions().batch_size(2).order([](int64_t size, int64_t epoch) {
        return std::vector<int64_t>{size - 1, epoch, 0};
      });
  EXPECT_EQ(labels_of(epoch_of(options, 3)), (std::vector<int64_t>{49, 3, 0}));
  EXPECT_EQ(epoch_of(options, 3).size(), 2u);
  // There is no sample 50, and epoch 1 is longer than epoch 0.
  expect_problem(error_of<InvalidArgument>([&] { epoch_of(options, 50); }),
                 ErrorCode::kMisuse, {"49", "50"});
  options.order([](int64_t, int64_t epoch) {
    return std::vector<int64_t>(static_cast<size_t>(epoch + 1), 0);
  });
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
    return {.target = padded.sum(1),
            .inputs = {c10::ivalue::Tuple::create({padded, padded.sum(1)})},
            .samples = count};
  }
};

TEST(Loader, CutsAPartOutOfABatchThatIsOnlyKnownAsAWhole) {
  const auto batch_of = [](BatchPart part) {
    const auto options =
        LoaderOptions().batch_size(10).part(part).shuffle(true);
    Loader loader(std::make_shared<Ragged>(), options);
    return *loader.begin();
  };
  const Batch whole = batch_of({});
  EXPECT_EQ(whole.total, 10);
  for (int64_t shard = 0; shard < 4; ++shard) {
    const Batch part = batch_of(BatchPart::for_rank(/*size=*/4, shard));
    const int64_t first = shard * 3;
    EXPECT_EQ(part.total, 10);
    EXPECT_EQ(part.samples, shard < 3 ? 3 : 1);
    EXPECT_TRUE(part.target.equal(whole.target.narrow(0, first, part.samples)));
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
  const auto other = LoaderOptions(kRandom).seed(1);
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
  Loader loader(images(50), LoaderOptions(kRandom).workers(3));
  const auto expected = epoch_of(kRandom, 4);
  for (int i = 0; i < 200; ++i) {
    loader.set_epoch(i);
    auto batch = loader.begin();
    for (int taken = 0; taken < i % 4; ++taken) ++batch;
  }
  loader.set_epoch(4);
  expect_same(epoch_of(loader), expected);
}

TEST(Loader, BeginsTheSameEpochAgainUntilAnotherIsSet) {
  Loader loader(images(50), kRandom);
  expect_same(epoch_of(loader), epoch_of(kRandom, 0));
  expect_same(epoch_of(loader), epoch_of(kRandom, 0));
  loader.set_epoch(3, 2);
  for (int i = 0; i < 2; ++i) {
    expect_same(epoch_of(loader), epoch_of(kRandom, 3, 2));
  }
  loader.set_epoch(1);
  expect_same(epoch_of(loader), epoch_of(kRandom, 1));
}

// As the iterators of torch::data's loaders are.
static_assert(std::input_iterator<Loader::Iterator>);
static_assert(std::ranges::input_range<Loader>);

TEST(Loader, HasIteratorsThatShareTheirPosition) {
  for (const int workers : {0, 2}) {
    Loader loader(images(50), LoaderOptions().batch_size(20).workers(workers));
    auto batch = loader.begin();
    const auto copy = batch;
    EXPECT_TRUE(batch == copy);
    EXPECT_EQ(&*batch, &*copy);
    ++batch;
    EXPECT_EQ(copy->target[0].item<int64_t>(), 20);
    batch++;
    EXPECT_EQ(batch->samples, 10);
    EXPECT_TRUE(batch != loader.end());
    ++batch;
    EXPECT_TRUE(batch == loader.end());
    EXPECT_TRUE(copy == loader.end());
    ++batch;  // stays there
    expect_problem(
        error_of<InvalidArgument>([&] { static_cast<void>(*batch); }),
        ErrorCode::kMisuse, {"end()"});
  }
}

TEST(Loader, RefusesAnIteratorOfAnEarlierBegin) {
  Loader loader(images(50), kRandom);
  const auto earlier = loader.begin();
  const auto later = loader.begin();
  expect_problem(
      error_of<InvalidArgument>([&] { static_cast<void>(*earlier); }),
      ErrorCode::kMisuse, {"begin()"});
  EXPECT_EQ(later->samples, 7);
}

TEST(Batch, HasDataAndTargetIfTheyAreTensors) {
  const torch::Tensor x = torch::ones({2, 3});
  const torch::Tensor y = torch::zeros({2});
  const Batch plain = make_batch({x}, y, 2);
  EXPECT_TRUE(plain.data.is_same(x));
  EXPECT_TRUE(plain.target.is_same(y));
  EXPECT_TRUE(plain.inputs.empty());
  EXPECT_TRUE(plain.arguments().at(0).toTensor().is_same(x));
  EXPECT_TRUE(plain.any_target().toTensor().is_same(y));
  EXPECT_TRUE(Batch().any_target().isNone());

  const auto pair = c10::ivalue::Tuple::create({x, y});
  const Batch nested = make_batch({x, y}, pair, 2);
  EXPECT_FALSE(nested.data.defined());
  EXPECT_FALSE(nested.target.defined());
  EXPECT_EQ(nested.inputs.size(), 2u);
  EXPECT_EQ(nested.arguments().size(), 2u);
  EXPECT_TRUE(nested.any_target().isTuple());
}

TEST(Loader, DropsTheLastBatchIfItIsShort) {
  auto options = LoaderOptions().batch_size(7).drop_last(true);
  EXPECT_EQ(epoch_of(options, 0).size(), 7u);
  options.drop_last(false);
  const auto batches = epoch_of(options, 0);
  ASSERT_EQ(batches.size(), 8u);
  EXPECT_EQ(batches.back().data.size(0), 1);
}

TEST(Loader, NormalisesAsTorchvisionDoes) {
  const Counting dataset(2);
  const auto batch = epoch_of(LoaderOptions().batch_size(50), 0, 0, {}).at(0);
  auto image = image_of(dataset, 1);
  const torch::Tensor bytes = torch::from_blob(
      image.data(), {3, Counting::kSide, Counting::kSide}, torch::kUInt8);
  const auto per_channel = [](const std::vector<float>& values) {
    return torch::tensor(values).reshape({3, 1, 1});
  };
  const torch::Tensor expected =
      (bytes.to(torch::kFloat32) / 255 - per_channel(dataset.mean())) /
      per_channel(dataset.stddev());
  EXPECT_TRUE(batch.data[1].equal(expected));
}

TEST(Loader, LaysOutChannelsLastWithTheSameValues) {
  const auto last =
      epoch_of(kRandom, 0, 0, ImageOptions().augment(true).channels_last(true));
  EXPECT_TRUE(last[0].data.is_contiguous(torch::MemoryFormat::ChannelsLast));
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
    const auto order = epoch_order(kSize, true, 5, epoch);
    for (size_t i = 0; i < kSize; ++i) ++counts[i][order[i]];
  }
  for (const auto& place_counts : counts) {
    for (const int count : place_counts)
      EXPECT_NEAR(count, kEpochs / kSize, 220);
  }
}

TEST(Loader, RethrowsWhatAWorkerThrew) {
  for (const int workers : {0, 1, 4}) {
    auto dataset = std::make_shared<Counting>(50);
    dataset->break_image(13);
    Loader loader(dataset, LoaderOptions().batch_size(10).workers(workers));
    auto batch = loader.begin();
    EXPECT_EQ(batch->target[0].item<int64_t>(), 0);
    ++batch;
    EXPECT_PRED2(contains, error_of<std::runtime_error>([&] {
                   static_cast<void>(*batch);
                 }),
                 "image 13 is broken");
    EXPECT_EQ(batch->target[0].item<int64_t>(), 20);
  }
}

TEST(Loader, StopsWithBatchesAheadOrNoneAsked) {
  for (int i = 0; i < 50; ++i) {
    Loader loader(images(50), LoaderOptions(kRandom).workers(1 + i % 4));
    if (i % 3 == 0) continue;
    auto batch = loader.begin();
    if (i % 3 > 1) ++batch;
  }
}

TEST(Loader, MirrorsNoImageThatWouldBeOfAnotherClass) {
  auto digits = std::make_shared<Counting>(200);
  digits->refuse_mirroring();
  const ImageSource source(digits, ImageOptions().augment(true).seed(3));
  const SampleWriter writer(*digits, PixelOrder::kPlanes);
  int mirrored = 0;
  for (int64_t i = 0; i < digits->size(); ++i) {
    Augmentation augmentation = random_augmentation(3, 0, i);
    mirrored += augmentation.is_mirrored ? 1 : 0;
    augmentation.is_mirrored = false;
    std::vector<float> expected(digits->image_bytes());
    writer.write(image_of(*digits, i), augmentation, expected);
    const torch::Tensor read = source.read(std::array{i}, 0).data;
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
  expect_problem(message(dataset, LoaderOptions().batch_size(0)),
                 ErrorCode::kMisuse, {"batch", "0"});
  expect_problem(  // the arguments in the wrong order
      message(dataset, LoaderOptions().part(BatchPart::for_rank(1, 2))),
      ErrorCode::kBadOption, {"part", "1 shards", "2 to 3"});
  expect_problem(message(dataset, LoaderOptions().workers(-1)),
                 ErrorCode::kMisuse, {"workers", "-1"});
  expect_problem(message(dataset, LoaderOptions().prefetch(0)),
                 ErrorCode::kMisuse, {"prefetch", "0"});
  expect_problem(
      message(dataset, LoaderOptions().batch_size(6).drop_last(true)),
      ErrorCode::kMisuse, {"5", "6"});
  Loader loader(dataset);
  EXPECT_THROW(loader.set_epoch(0, -1), InvalidArgument);
  EXPECT_THROW(loader.set_epoch(-1), InvalidArgument);
}

TEST(Dataset, SuggestsTheNearestName) {
  expect_problem(
      error_of<InvalidArgument>([] { open({.name = "cifar"}, Split::kTrain); }),
      ErrorCode::kUnknownName, {"'cifar'", "cifar10"});
  EXPECT_EQ(open({.samples = 10}, Split::kTrain)->size(), 10);
}

TEST(Loader, SaysThatItCanStartNoMoreWorkers) {
  EXPECT_EXIT(exit_without_threads([] {
                Loader(std::make_shared<Counting>(8),
                       LoaderOptions().batch_size(4).workers(64));
              }),
              testing::ExitedWithCode(0), "for a worker of the loader");
}

// Datasets of a user: sample i is i, and its target is i * i.
torch::data::Example<> square(int64_t i) {
  return {torch::tensor({static_cast<float>(i)}), torch::tensor(i * i)};
}

struct Squares {
  size_t size() const { return 10; }
  torch::data::Example<> get(size_t i) const {
    return square(static_cast<int64_t>(i));
  }
};

struct SquareStream {
  void reset() { at = 0; }
  std::optional<torch::data::Example<>> next() { return square(at++); }
  int64_t at = 0;
};

TEST(Loader, TakesADatasetOfTheUsers) {
  const auto options = LoaderOptions().batch_size(4).workers(2);
  Loader loader(std::make_shared<Squares>(), options);
  const auto batches = epoch_of(loader);
  ASSERT_EQ(batches.size(), 3u);
  EXPECT_TRUE(
      batches[1].data.equal(torch::tensor({{4.F}, {5.F}, {6.F}, {7.F}})));
  EXPECT_TRUE(batches[2].target.equal(torch::tensor({64, 81})));
  Loader stream_loader(in_order(std::make_shared<SquareStream>(), 10), options);
  for (const int64_t epoch : {0, 1}) {
    stream_loader.set_epoch(epoch);
    expect_same(epoch_of(stream_loader), batches);
  }
}

TEST(Loader, HasTheInputsOfSamplesThatAreTuples) {
  struct Pairs {
    size_t size() const { return 3; }
    std::pair<std::tuple<torch::Tensor, torch::Tensor>, int64_t> get(
        size_t i) const {
      return {{torch::full({2}, static_cast<double>(i)), torch::zeros({5})},
              static_cast<int64_t>(i)};
    }
  };
  Loader loader(std::make_shared<Pairs>());
  const auto batches = epoch_of(loader);
  ASSERT_EQ(batches.size(), 1u);
  ASSERT_EQ(batches[0].inputs.size(), 2u);
  EXPECT_EQ(batches[0].inputs[1].toTensor().sizes(),
            (std::vector<int64_t>{3, 5}));
  EXPECT_TRUE(batches[0].target.equal(torch::arange(3)));
}

TEST(Loader, SaysHowSamplesOfDifferentShapesAreJoined) {
  struct Ragged {
    size_t size() const { return 4; }
    torch::Tensor get(size_t i) const {
      return torch::zeros({static_cast<int64_t>(i) + 1});
    }
  };
  const auto ragged = std::make_shared<Ragged>();
  Loader loader(ragged);
  expect_problem(error_of<InvalidArgument>([&] { epoch_of(loader); }),
                 ErrorCode::kMisuse, {"can't be stacked", "set_collate()"});
  const auto padded = std::make_shared<DatasetSource<Ragged>>(ragged);
  padded->set_collate([](const std::vector<torch::Tensor>& samples) {
    return std::pair(torch::nn::utils::rnn::pad_sequence(samples, true),
                     static_cast<int64_t>(samples.size()));
  });
  Loader with_padding(padded);
  EXPECT_EQ(epoch_of(with_padding).front().data.sizes(),
            (std::vector<int64_t>{4, 4}));
}

}  // namespace
}  // namespace lockstep::data
