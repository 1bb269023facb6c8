#include "lockstep/data/in_order.h"

#include <gtest/gtest.h>
#include <torch/data.h>
#include <torch/nn/modules/linear.h>
#include <torch/optim/sgd.h>
#include <torch/serialize.h>

#include "lockstep/data/loader.h"
#include "lockstep/train/trainer.h"
#include "tests/base/error_code_of.h"
#include "tests/base/temporary_folder.h"
#include "tests/train/report_of_ranks.h"
#include "tests/train/short_runs.h"

namespace lockstep::training {
namespace {

using torch::Tensor;
using Sample = std::pair<Tensor, Tensor>;

constexpr int64_t kSamples = 50;  // of an epoch

Sample point(int64_t index) {
  const Tensor x = torch::full({1}, static_cast<double>(index) / kSamples);
  return {x, torch::sin(6 * x)};
}

struct Indexed {
  size_t size() const { return kSamples; }
  Sample get(size_t index) const { return point(static_cast<int64_t>(index)); }
};

struct Stream {
  void reset() { at = 0; }
  std::optional<Sample> next() {
    if (at >= length) return std::nullopt;
    return point(at++);
  }
  int64_t length = kSamples;
  int64_t at = -1;  // until it is reset
};

/// One that can skip, as a file can.
struct Seekable : Stream {
  void skip(size_t count) {
    at += static_cast<int64_t>(count);
    ++skips;
  }
  int skips = 0;
};

/// As torch::data has them.
struct StatefulStream : torch::data::datasets::StatefulDataset<StatefulStream> {
  std::optional<std::vector<torch::data::Example<>>> get_batch(
      size_t count) override {
    std::vector<torch::data::Example<>> batch;
    while (batch.size() < count) {
      auto sample = stream.next();
      if (!sample) break;
      batch.emplace_back(sample->first, sample->second);
    }
    if (batch.empty()) return std::nullopt;
    return batch;
  }
  std::optional<size_t> size() const override { return std::nullopt; }
  void reset() override { stream.reset(); }
  void save(torch::serialize::OutputArchive&) const override {}
  void load(torch::serialize::InputArchive&) override {}
  Stream stream;
};

template <class D>
Trainer<torch::nn::LinearImpl> line_trainer(std::shared_ptr<D> data) {
  Trainer trainer([] { return torch::nn::Linear(1, 1); });
  trainer.data(std::move(data))
      .loss([](const Tensor& output, const Tensor& target) {
        return torch::mse_loss(output, target);
      })
      .optimizer([](torch::nn::LinearImpl& net) {
        return std::make_unique<torch::optim::SGD>(net.parameters(), 0.1);
      });
  return trainer;
}

TrainOptions run_options(const std::string& out_dir = "") {
  TrainOptions options = short_run(/*batch_size=*/12, /*shards=*/2);
  options.epochs(3);
  options.loading().workers(3);
  options.out_dir(out_dir);
  return options;
}

std::string digest_of_indexed() {
  TrainOptions options = run_options();
  options.loading().shuffle(false);
  return line_trainer(std::make_shared<Indexed>())
      .fit(options)
      .parameter_sha256;
}

template <class D>
std::string digest_of_stream(const TrainOptions& options,
                             const ProcessGroup& ranks = {}) {
  return line_trainer(in_order(std::make_shared<D>(), kSamples))
      .fit(options, ranks)
      .parameter_sha256;
}

TEST(InOrder, GivesTheSamplesInTheirOrder) {
  const std::string expected = digest_of_indexed();
  EXPECT_EQ(digest_of_stream<Stream>(run_options()), expected);
  EXPECT_EQ(digest_of_stream<StatefulStream>(run_options()), expected);
  TrainOptions without_threads = run_options();
  without_threads.loading().workers(0);
  EXPECT_EQ(digest_of_stream<Stream>(without_threads), expected);
}

TEST(InOrder, GivesEachRankItsPart) {
  const std::string expected = digest_of_indexed();
  TrainOptions options = run_options();
  options.strategy(Strategy::kDistributed);
  options.devices().resize(2, options.devices()[0]);
  report_of_ranks(2, "auto", [&](const ProcessGroup& world) {
    EXPECT_EQ(digest_of_stream<StatefulStream>(options, world), expected);
    return RunReport();
  });
}

TEST(InOrder, GoesOnWithinAnEpoch) {
  const std::string expected = digest_of_indexed();
  const TemporaryFolder folder;
  TrainOptions first = run_options(folder.path("run"));
  first.max_steps(7);  // of 5 an epoch
  digest_of_stream<Stream>(first);
  TrainOptions second = run_options(folder.path("run"));
  second.checkpoint().resume("auto");
  auto stream = std::make_shared<Seekable>();
  EXPECT_EQ(
      line_trainer(in_order(stream, kSamples)).fit(second).parameter_sha256,
      expected);
  EXPECT_EQ(stream->skips, 1);
}

// A new epoch of an endless one begins where it is reset to.
TEST(InOrder, ReadsNoMoreThanAnEpoch) {
  auto stream = std::make_shared<Stream>();
  stream->length = 1'000'000;
  EXPECT_EQ(line_trainer(in_order(stream, kSamples))
                .fit(run_options())
                .parameter_sha256,
            digest_of_indexed());
  EXPECT_EQ(stream->at, kSamples);
}

TEST(InOrder, RefusesAnEarlyEnd) {
  auto stream = std::make_shared<Stream>();
  stream->length = kSamples - 1;
  EXPECT_EQ(error_code_of([&] {
              line_trainer(in_order(stream, kSamples)).fit(run_options());
            }),
            ErrorCode::kMisuse);
}

TEST(InOrder, IsNotBothTrainingAndTestData) {
  const auto stream = std::make_shared<Stream>();
  const auto both = in_order(stream, kSamples);
  for (const auto& test_data : {both, in_order(stream, 10)}) {
    auto trainer = line_trainer(both);
    trainer.test_data(test_data);
    EXPECT_EQ(error_code_of([&] { trainer.fit(run_options()); }),
              ErrorCode::kMisuse);
  }
}

TEST(InOrder, HasNoOrderOfItsOwn) {
  const auto source =
      std::make_shared<data::DatasetSource<data::InOrder<Stream>>>(
          in_order(std::make_shared<Stream>(), kSamples), 1);
  const auto options = data::LoaderOptions().order([](int64_t, int64_t) {
    return std::vector<int64_t>{1, 0};
  });
  EXPECT_EQ(error_code_of([&] { data::Loader loader(source, options); }),
            ErrorCode::kMisuse);
}

}  // namespace
}  // namespace lockstep::training
