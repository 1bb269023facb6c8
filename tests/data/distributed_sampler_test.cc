#include "lockstep/data/distributed_sampler.h"

#include <set>
#include <sstream>

#include <gtest/gtest.h>
#include <torch/data.h>
#include <torch/serialize.h>

#include "lockstep/base/chunk.h"
#include "lockstep/data/loader.h"
#include "tests/base/error_code_of.h"

namespace lockstep::data {
namespace {

/// Samples with the value of their index.
struct Numbers : BatchSource {
  explicit Numbers(int64_t count) : count_(count) {}
  int64_t size() const override { return count_; }
  Batch read(std::span<const int64_t> indices, int64_t) const override {
    return {.data = torch::tensor(
                std::vector<int64_t>(indices.begin(), indices.end())),
            .target = torch::zeros({1}),
            .samples = static_cast<int64_t>(indices.size())};
  }
  int64_t count_;
};

struct TorchNumbers : torch::data::Dataset<TorchNumbers> {
  std::optional<size_t> size() const override { return 50; }
  torch::data::Example<> get(size_t index) override {
    return {torch::tensor(static_cast<int64_t>(index)), torch::zeros({1})};
  }
};

std::vector<std::vector<size_t>> epoch_of(DistributedSampler& sampler,
                                          size_t batch_size) {
  std::vector<std::vector<size_t>> batches;
  sampler.reset(50);
  while (auto batch = sampler.next(batch_size)) batches.push_back(*batch);
  return batches;
}

TEST(DistributedSampler, GivesWhatALoaderGives) {
  for (const int ranks : {1, 2, 3}) {
    const size_t batch_size = 12 / static_cast<size_t>(ranks);
    for (int rank = 0; rank < ranks; ++rank) {
      const ShardRange own = shards_of_worker(rank, ranks, 4);
      const bool drops_last = ranks > 2;
      Loader loader(
          std::make_shared<Numbers>(50),
          LoaderOptions()
              .batch_size(12)
              .part({.shards = 4, .first = own.first, .last = own.last})
              .shuffle(true)
              .drop_last(drops_last)
              .seed(9));
      DistributedSampler sampler(
          50, ranks, rank,
          DistributedSamplerOptions().shards(4).drop_last(drops_last).seed(9));
      for (int64_t epoch = 0; epoch < 2; ++epoch) {
        sampler.set_epoch(epoch);
        const auto batches = epoch_of(sampler, batch_size);
        EXPECT_EQ(static_cast<int64_t>(batches.size()),
                  sampler.batches(static_cast<int64_t>(batch_size)));
        EXPECT_EQ(sampler.epoch(), epoch);
        loader.set_epoch(epoch);
        auto expected = loader.begin();
        for (const auto& batch : batches) {
          ASSERT_TRUE(expected != loader.end());
          EXPECT_TRUE(torch::equal(
              torch::tensor(std::vector<int64_t>(batch.begin(), batch.end())),
              expected->data));
          ++expected;
        }
      }
    }
  }
}

// 50 samples in batches of 12 leave 2, so the last of 4 ranks would get none.
TEST(DistributedSampler, HasAsManyBatchesOnAllRanks) {
  std::set<size_t> seen;
  for (int rank = 0; rank < 4; ++rank) {
    DistributedSampler sampler(50, 4, rank);
    const auto batches = epoch_of(sampler, 3);
    EXPECT_EQ(batches.size(), 4u);
    for (const auto& batch : batches) {
      EXPECT_EQ(batch.size(), 3u);
      for (const size_t index : batch) EXPECT_TRUE(seen.insert(index).second);
    }
  }
  EXPECT_EQ(seen.size(), 48u);
}

std::vector<int64_t> firsts_of(auto& loader) {
  std::vector<int64_t> first;
  for (auto& batch : *loader)
    first.push_back(batch.data[0].template item<int64_t>());
  return first;
}

TEST(DistributedSampler, FeedsALoaderOfTorch) {
  const DistributedSampler sampler(50, 2, 1,
                                   DistributedSamplerOptions().shuffle(false));
  auto loader = torch::data::make_data_loader(
      TorchNumbers().map(torch::data::transforms::Stack<>()), sampler,
      torch::data::DataLoaderOptions().batch_size(10).workers(2));
  for (int epoch = 0; epoch < 2; ++epoch) {
    EXPECT_EQ(firsts_of(loader), (std::vector<int64_t>{10, 30, 45}));
  }
}

TEST(DistributedSampler, SetsTheEpochOfTheCopyThatALoaderHas) {
  DistributedSampler sampler(50, 2, 0);
  auto loader = torch::data::make_data_loader(
      TorchNumbers().map(torch::data::transforms::Stack<>()), sampler, 10);
  const auto first = firsts_of(loader);
  EXPECT_EQ(firsts_of(loader), first);
  sampler.set_epoch(1);
  const auto second = firsts_of(loader);
  EXPECT_NE(second, first);
  sampler.set_epoch(0, 1);
  EXPECT_EQ(firsts_of(loader),
            (std::vector<int64_t>(first.begin() + 1, first.end())));
  sampler.set_epoch(1);
  EXPECT_EQ(firsts_of(loader), second);
}

TEST(DistributedSampler, GoesOnWhereItWas) {
  const auto options = DistributedSamplerOptions().seed(3);
  DistributedSampler whole(50, 2, 0, options);
  whole.set_epoch(1);
  const auto second = epoch_of(whole, 6);
  const std::vector<std::vector<size_t>> rest(second.begin() + 1, second.end());

  DistributedSampler stopped(50, 2, 0, options);
  const auto saved = [&] {
    torch::serialize::OutputArchive out;
    stopped.save(out);
    std::stringstream stream;
    out.save_to(stream);
    torch::serialize::InputArchive in;
    in.load_from(stream);
    return in;
  };
  DistributedSampler loaded(50, 2, 0, options);
  stopped.set_epoch(1);
  stopped.reset(50);
  stopped.next(6);
  auto archive = saved();
  loaded.load(archive);
  EXPECT_EQ(loaded.epoch(), 1);
  EXPECT_EQ(epoch_of(loaded, 6), rest);

  // The end of epoch 0 is the beginning of epoch 1.
  stopped.set_epoch(0);
  epoch_of(stopped, 6);
  archive = saved();
  loaded.load(archive);
  EXPECT_EQ(epoch_of(loaded, 6), second);
}

TEST(DistributedSampler, RefusesWhatCanNotBe) {
  const auto code_of = [](int64_t size, int ranks, int rank,
                          const DistributedSamplerOptions& options = {}) {
    return error_code_of(
        [&] { DistributedSampler sampler(size, ranks, rank, options); });
  };
  EXPECT_EQ(code_of(0, 1, 0), ErrorCode::kMisuse);
  EXPECT_EQ(code_of(50, 0, 0), ErrorCode::kMisuse);
  EXPECT_EQ(code_of(50, 2, 2), ErrorCode::kMisuse);
  EXPECT_EQ(code_of(50, 2, -1), ErrorCode::kMisuse);
  EXPECT_EQ(code_of(50, 2, 0, DistributedSamplerOptions().shards(1)),
            ErrorCode::kMisuse);
  const auto next_of = [](const DistributedSamplerOptions& options,
                          size_t batch_size) {
    DistributedSampler sampler(50, 2, 0, options);
    return error_code_of([&] { sampler.next(batch_size); });
  };
  EXPECT_EQ(next_of({}, 0), ErrorCode::kMisuse);
  EXPECT_EQ(next_of(DistributedSamplerOptions().shards(4), 1),
            ErrorCode::kMisuse);
  EXPECT_EQ(next_of(DistributedSamplerOptions().drop_last(true), 30),
            ErrorCode::kMisuse);
  EXPECT_EQ(next_of({}, 30), std::nullopt);
  DistributedSampler sampler(50, 2, 0);
  EXPECT_EQ(error_code_of([&] { sampler.set_epoch(-1); }), ErrorCode::kMisuse);
  EXPECT_EQ(error_code_of([&] { sampler.set_epoch(0, -1); }),
            ErrorCode::kMisuse);
  EXPECT_EQ(error_code_of([&] { sampler.reset(51); }), ErrorCode::kMisuse);
}

}  // namespace
}  // namespace lockstep::data
