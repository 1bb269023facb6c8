#include "lockstep/train/state/spike_guard.h"

#include <cmath>

#include <gtest/gtest.h>
#include <torch/nn/cloneable.h>
#include <torch/nn/modules/batchnorm.h>
#include <torch/nn/modules/linear.h>
#include <torch/optim/sgd.h>

#include "lockstep/train/trainer.h"
#include "tests/base/error_code_of.h"
#include "tests/base/temporary_folder.h"
#include "tests/train/report_of_ranks.h"
#include "tests/train/short_runs.h"

namespace lockstep::training {
namespace {

using torch::Tensor;

TEST(SpikeGuard, LooksAtTheLastLosses) {
  SpikeGuard guard(SpikeOptions().sigma(2).window(4));
  guard.add(100);
  EXPECT_TRUE(std::isinf(guard.limit()));
  guard.add(1);
  EXPECT_FALSE(std::isinf(guard.limit()));
  for (const double loss : {2, 3, 4}) guard.add(loss);
  // 1, 2, 3, 4: the mean is 2.5, the sample variance 5 / 3.
  EXPECT_DOUBLE_EQ(guard.limit(), 2.5 + 2 * std::sqrt(5.0 / 3));
  SpikeGuard other(SpikeOptions().sigma(2).window(4));
  other.load_state(guard.state());
  EXPECT_EQ(other.limit(), guard.limit());
  other.add(5);
  EXPECT_DOUBLE_EQ(other.limit(), 3.5 + 2 * std::sqrt(5.0 / 3));
  guard.restart();
  EXPECT_TRUE(std::isinf(guard.limit()));
}

// A state comes from a file, so its contents are not trusted.
TEST(SpikeGuard, ReadsNoMoreThanThereIs) {
  SpikeGuard guard(SpikeOptions().window(2));
  guard.load_state({{"losses", torch::ones({2}, torch::kFloat64)},
                    {"count", torch::tensor(int64_t{1} << 60)}});
  EXPECT_EQ(guard.limit(), 1);
  guard.load_state({{"losses", torch::ones({2}, torch::kFloat64)},
                    {"count", torch::tensor(int64_t{-1})}});
  EXPECT_TRUE(std::isinf(guard.limit()));
}

constexpr int64_t kBatch = 8;
constexpr int64_t kSteps = 10;
constexpr int64_t kSpike = 6;  // this step, counted from 0
constexpr int64_t kSaved = 4;  // the last checkpoint before has so many steps

struct NetImpl : torch::nn::Cloneable<NetImpl> {
  NetImpl() { reset(); }
  void reset() override {
    norm = register_module("norm", torch::nn::BatchNorm1d(3));
    line = register_module("line", torch::nn::Linear(3, 1));
  }
  Tensor forward(const Tensor& x) { return line(norm(x)); }
  torch::nn::BatchNorm1d norm{nullptr};
  torch::nn::Linear line{nullptr};
};

// One batch has targets that are far off.
struct Points {
  size_t size() const { return kBatch * kSteps; }
  std::pair<Tensor, Tensor> get(size_t index) const {
    const Tensor x = torch::sin(torch::arange(3, torch::kFloat) +
                                static_cast<double>(index));
    const bool is_bad = static_cast<int64_t>(index) / kBatch == kSpike;
    return {x, x.sum(0, true) + (is_bad ? 1000 : 0)};
  }
};

template <class Net>
std::unique_ptr<torch::optim::SGD> make_sgd(Net& net) {
  return std::make_unique<torch::optim::SGD>(
      net.parameters(), torch::optim::SGDOptions(0.01).momentum(0.9));
}

Trainer<NetImpl> net_trainer() {
  Trainer trainer([] { return std::make_shared<NetImpl>(); });
  trainer.data(std::make_shared<Points>())
      .loss([](const Tensor& output, const Tensor& target) {
        return torch::mse_loss(output, target);
      })
      .optimizer([](NetImpl& net) { return make_sgd(net); });
  return trainer;
}

TrainOptions options_of(OnSpike action, const std::string& out_dir) {
  TrainOptions options = short_run(kBatch, /*shards=*/2);
  options.loading().shuffle(false);
  options.spikes(SpikeOptions().action(action).sigma(6).window(8));
  options.out_dir(out_dir);
  options.checkpoint().every(kSaved);
  return options;
}

RunReport fit_on_ranks(const TrainOptions& options, const char* backend) {
  return report_of_ranks(2, backend, [&](const ProcessGroup& world) {
    TrainOptions rank_options = options;
    rank_options.strategy(Strategy::kDistributed);
    rank_options.devices().resize(2, options.devices()[0]);
    return net_trainer().fit(rank_options, world);
  });
}

/// The weights after a loop that leaves out the update of the spike and, if
/// `rolls_back`, those since the last checkpoint.
Tensor expected_weights(bool rolls_back) {
  torch::manual_seed(0);
  NetImpl net;
  const auto sgd = make_sgd(net);
  const Points points;
  for (int64_t step = 0; step < kSteps; ++step) {
    if (step == kSpike || (rolls_back && step >= kSaved && step < kSpike)) {
      continue;
    }
    std::vector<Tensor> inputs, targets;
    for (int64_t i = step * kBatch; i < (step + 1) * kBatch; ++i) {
      auto [x, y] = points.get(static_cast<size_t>(i));
      inputs.push_back(x);
      targets.push_back(y);
    }
    sgd->zero_grad();
    torch::mse_loss(net.forward(torch::stack(inputs)), torch::stack(targets))
        .backward();
    sgd->step();
  }
  return net.line->weight.detach();
}

class Spikes : public testing::TestWithParam<OnSpike> {};
INSTANTIATE_TEST_SUITE_P(Actions, Spikes,
                         testing::Values(OnSpike::kSkip, OnSpike::kRollBack),
                         [](const auto& at) {
                           return at.param == OnSpike::kSkip ? "Skip"
                                                             : "RollBack";
                         });

// With one shard, as LibTorch's loop has one: the sums of a batch are those of
// the same operations, but SGD is another kernel.
TEST_P(Spikes, LeaveTheWeightsOfALoopWithoutThem) {
  const TemporaryFolder folder;
  TrainOptions options = options_of(GetParam(), folder.path("run"));
  options.shards(1);
  auto trainer = net_trainer();
  const RunReport report = trainer.fit(options);
  EXPECT_EQ(report.skipped_steps, 1);
  EXPECT_EQ(report.rollbacks, GetParam() == OnSpike::kRollBack ? 1 : 0);
  const Tensor expected = expected_weights(GetParam() == OnSpike::kRollBack);
  const Tensor got = trainer.module()->line->weight;
  EXPECT_TRUE(torch::allclose(got, expected, 1e-5, 1e-6)) << got << "\n"
                                                          << expected;
}

TEST_P(Spikes, HaveTheSameBitsInAllStrategies) {
  const TemporaryFolder folder;
  int run = 0;
  const auto fresh = [&] {
    return options_of(GetParam(), folder.path(std::to_string(run++)));
  };
  const std::string expected = net_trainer().fit(fresh()).parameter_sha256;
  TrainOptions dp = fresh();
  dp.strategy(Strategy::kDataParallel);
  dp.devices().resize(2, dp.devices()[0]);
  EXPECT_EQ(net_trainer().fit(dp).parameter_sha256, expected);
  for (const char* backend : {"shm", "tcp"}) {
    EXPECT_EQ(fit_on_ranks(fresh(), backend).parameter_sha256, expected)
        << backend;
  }
  TrainOptions zero = fresh();
  zero.zero(ZeroStage::kGradients);
  EXPECT_EQ(fit_on_ranks(zero, "tcp").parameter_sha256, expected);
  // The batch is one that matters.
  TrainOptions unguarded = fresh();
  unguarded.spikes().action(OnSpike::kNothing);
  EXPECT_NE(net_trainer().fit(unguarded).parameter_sha256, expected);
}

TEST_P(Spikes, AreToldAfterAStop) {
  const TemporaryFolder folder;
  const TrainOptions whole = options_of(GetParam(), folder.path("whole"));
  TrainOptions first = options_of(GetParam(), folder.path("run"));
  first.max_steps(kSpike - 1);
  net_trainer().fit(first);
  TrainOptions second = options_of(GetParam(), folder.path("run"));
  second.checkpoint().resume("auto");
  const RunReport report = net_trainer().fit(second);
  EXPECT_EQ(report.skipped_steps, 1);
  EXPECT_EQ(report.parameter_sha256, net_trainer().fit(whole).parameter_sha256);
}

TEST(SpikeOptions, NeedWhatFits) {
  const TemporaryFolder folder;
  const auto code_of = [](const TrainOptions& options) {
    return error_code_of([&] { net_trainer().fit(options); });
  };
  TrainOptions no_folder = options_of(OnSpike::kRollBack, "");
  EXPECT_EQ(code_of(no_folder), ErrorCode::kBadOption);
  TrainOptions no_checkpoints =
      options_of(OnSpike::kRollBack, folder.path("run"));
  no_checkpoints.checkpoint().every(0);
  EXPECT_EQ(code_of(no_checkpoints), ErrorCode::kBadOption);
  TrainOptions no_sigma = options_of(OnSpike::kSkip, "");
  no_sigma.spikes().sigma(0);
  EXPECT_EQ(code_of(no_sigma), ErrorCode::kBadOption);
  TrainOptions no_window = options_of(OnSpike::kSkip, "");
  no_window.spikes().window(1);
  EXPECT_EQ(code_of(no_window), ErrorCode::kBadOption);
}

}  // namespace
}  // namespace lockstep::training
