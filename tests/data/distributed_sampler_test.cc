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
    return {.inputs = {torch::tensor(
                std::vector<int64_t>(indices.begin(), indices.end()))},
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

std::vector<std::vector<size_t>> epoch_of(DistributedSampler& sampler) {
  std::vector<std::vector<size_t>> batches;
  sampler.reset(50);
  while (auto batch = sampler.next(1000)) batches.push_back(*batch);
  return batches;
}

TEST(DistributedSampler, GivesWhatALoaderGives) {
  const DistributedSamplerOptions options{
      .batch_size = 12, .shards = 4, .seed = 9};
  for (const int ranks : {1, 2, 3}) {
    for (int rank = 0; rank < ranks; ++rank) {
      const ShardRange own = shards_of_worker(rank, ranks, 4);
      Loader loader(
          std::make_shared<Numbers>(50),
          {.batch_size = 12,
           .part = {.shards = 4, .first = own.first, .last = own.last},
           .shuffle = true,
           .drop_last = ranks > 2,
           .seed = 9});
      DistributedSamplerOptions of_rank = options;
      of_rank.drop_last = ranks > 2;
      DistributedSampler sampler(50, rank, ranks, of_rank);
      for (int64_t epoch = 0; epoch < 2; ++epoch) {
        const auto batches = epoch_of(sampler);
        EXPECT_EQ(static_cast<int64_t>(batches.size()), sampler.batches());
        EXPECT_EQ(sampler.epoch(), epoch);
        loader.begin(epoch);
        for (const auto& batch : batches) {
          const auto expected = loader.next();
          ASSERT_TRUE(expected);
          EXPECT_TRUE(torch::equal(
              torch::tensor(std::vector<int64_t>(batch.begin(), batch.end())),
              expected->inputs[0].toTensor()));
        }
      }
    }
  }
}

// 50 samples in batches of 12 leave 2, so the last of 4 ranks would get none.
TEST(DistributedSampler, HasAsManyBatchesOnAllRanks) {
  std::set<size_t> seen;
  for (int rank = 0; rank < 4; ++rank) {
    DistributedSampler sampler(50, rank, 4, {.batch_size = 12});
    const auto batches = epoch_of(sampler);
    EXPECT_EQ(batches.size(), 4u);
    for (const auto& batch : batches) {
      for (const size_t index : batch) EXPECT_TRUE(seen.insert(index).second);
    }
  }
  EXPECT_EQ(seen.size(), 48u);
}

TEST(DistributedSampler, FeedsALoaderOfTorch) {
  DistributedSampler sampler(50, 1, 2, {.batch_size = 20, .shuffle = false});
  auto loader = torch::data::make_data_loader(
      TorchNumbers().map(torch::data::transforms::Stack<>()), sampler,
      torch::data::DataLoaderOptions().batch_size(10).workers(2));
  for (int epoch = 0; epoch < 2; ++epoch) {
    std::vector<int64_t> first;
    for (auto& batch : *loader) first.push_back(batch.data[0].item<int64_t>());
    EXPECT_EQ(first, (std::vector<int64_t>{10, 30, 45}));
  }
}

TEST(DistributedSampler, GoesOnWhereItWas) {
  const DistributedSamplerOptions options{.batch_size = 12, .seed = 3};
  DistributedSampler whole(50, 0, 2, options);
  const auto first = epoch_of(whole);
  const auto second = epoch_of(whole);

  DistributedSampler stopped(50, 0, 2, options);
  epoch_of(stopped);
  stopped.reset(50);
  stopped.next(12);
  torch::serialize::OutputArchive out;
  stopped.save(out);
  std::stringstream stream;
  out.save_to(stream);
  torch::serialize::InputArchive in;
  in.load_from(stream);
  DistributedSampler loaded(50, 0, 2, options);
  loaded.load(in);
  const std::vector<std::vector<size_t>> rest(second.begin() + 1, second.end());
  EXPECT_EQ(epoch_of(loaded), rest);

  DistributedSamplerOptions later = options;
  later.first_epoch = 1;
  later.first_batch = 1;
  DistributedSampler told(50, 0, 2, later);
  EXPECT_EQ(epoch_of(told), rest);
}

TEST(DistributedSampler, RefusesWhatCanNotBe) {
  const auto code_of = [](int64_t size, int rank, int ranks,
                          const DistributedSamplerOptions& options) {
    return error_code_of(
        [&] { DistributedSampler sampler(size, rank, ranks, options); });
  };
  EXPECT_EQ(code_of(0, 0, 1, {}), ErrorCode::kMisuse);
  EXPECT_EQ(code_of(50, 0, 0, {}), ErrorCode::kMisuse);
  EXPECT_EQ(code_of(50, 2, 2, {}), ErrorCode::kMisuse);
  EXPECT_EQ(code_of(50, -1, 2, {}), ErrorCode::kMisuse);
  EXPECT_EQ(code_of(50, 0, 2, {.batch_size = 0}), ErrorCode::kMisuse);
  EXPECT_EQ(code_of(50, 0, 2, {.batch_size = 1}), ErrorCode::kMisuse);
  EXPECT_EQ(code_of(50, 0, 2, {.shards = 1}), ErrorCode::kMisuse);
  EXPECT_EQ(code_of(50, 0, 2, {.batch_size = 60, .drop_last = true}),
            ErrorCode::kMisuse);
  EXPECT_EQ(code_of(50, 0, 2, {.first_epoch = -1}), ErrorCode::kMisuse);
  EXPECT_EQ(code_of(50, 0, 2, {.batch_size = 25, .first_batch = 2}),
            ErrorCode::kMisuse);
  DistributedSampler sampler(50, 0, 2, {.batch_size = 20});
  EXPECT_EQ(error_code_of([&] { sampler.next(9); }), ErrorCode::kMisuse);
  EXPECT_EQ(error_code_of([&] { sampler.reset(51); }), ErrorCode::kMisuse);
}

}  // namespace
}  // namespace lockstep::data
