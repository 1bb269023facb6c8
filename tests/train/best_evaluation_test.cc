#include "lockstep/train/best_evaluation.h"

#include <cmath>
#include <filesystem>

#include <gtest/gtest.h>
#include <torch/nn/cloneable.h>
#include <torch/nn/modules/linear.h>
#include <torch/optim/sgd.h>

#include "lockstep/checkpoint/checkpoint.h"
#include "lockstep/train/trainer.h"
#include "tests/base/error_code_of.h"
#include "tests/base/temporary_folder.h"
#include "tests/train/report_of_ranks.h"
#include "tests/train/short_runs.h"

namespace lockstep::training {
namespace {

using torch::Tensor;

void tell(BestEvaluation& best, int64_t step, double value,
          const char* metric = "loss") {
  best.after_evaluation({.step = step},
                        {.metrics = {{metric, value}}, .samples = 1});
}

TEST(BestEvaluation, KeepsTheLeastLossAndTheGreatestAccuracy) {
  BestEvaluation loss("loss", 0);
  EXPECT_FALSE(loss.is_new());
  const std::vector<std::pair<double, bool>> values{
      {2, true}, {3, false}, {1, true}, {1, false}, {NAN, false}, {0.5, true}};
  int64_t step = 0;
  for (const auto& [value, is_best] : values) {
    tell(loss, ++step, value);
    EXPECT_EQ(loss.is_new(), is_best) << value;
  }
  EXPECT_EQ(loss.step(), 6);
  BestEvaluation accuracy("accuracy", 0);
  tell(accuracy, 1, 0.5, "accuracy");
  tell(accuracy, 2, 0.4, "accuracy");
  EXPECT_EQ(accuracy.step(), 1);
  tell(accuracy, 3, 0.6, "accuracy");
  EXPECT_EQ(accuracy.step(), 3);
  BestEvaluation reversed("accuracy:min", 0);
  tell(reversed, 1, 0.5, "accuracy");
  tell(reversed, 2, 0.4, "accuracy");
  EXPECT_EQ(reversed.step(), 2);
}

TEST(BestEvaluation, GoesOnWhereItWas) {
  BestEvaluation first("loss", 3);
  tell(first, 1, 1);
  tell(first, 2, 2);
  tell(first, 3, 2);
  BestEvaluation second("loss", 3);
  second.load_state(first.state());
  EXPECT_FALSE(second.wants_to_stop());
  tell(second, 4, 1.5);
  EXPECT_TRUE(second.wants_to_stop());
  EXPECT_EQ(second.step(), 1);
}

TEST(BestEvaluation, RefusesMetricsThatAreNotThere) {
  for (const char* metric : {"", ":max", "loss:", "loss:most"}) {
    EXPECT_EQ(error_code_of([&] { BestEvaluation best(metric, 0); }),
              ErrorCode::kBadOption)
        << metric;
  }
  BestEvaluation best("acuracy", 0);
  EXPECT_EQ(error_code_of([&] { tell(best, 1, 1, "accuracy"); }),
            ErrorCode::kUnknownName);
}

struct LineImpl : torch::nn::Cloneable<LineImpl> {
  LineImpl() { reset(); }
  void reset() override {
    line = register_module("line", torch::nn::Linear(1, 1));
  }
  Tensor forward(const Tensor& x) { return line(x); }
  torch::nn::Linear line{nullptr};
};

struct LinePoints {
  size_t size() const { return 40; }
  std::pair<Tensor, Tensor> get(size_t index) const {
    const Tensor x = torch::full({1}, static_cast<double>(index) / 40);
    return {x, 2 * x};
  }
};

Trainer<LineImpl> line_trainer(double lr) {
  Trainer trainer([] { return std::make_shared<LineImpl>(); });
  trainer.data(std::make_shared<LinePoints>())
      .test_data(std::make_shared<LinePoints>())
      .loss([](const Tensor& output, const Tensor& target) {
        return torch::mse_loss(output, target);
      })
      .optimizer([lr](LineImpl& net) {
        return std::make_unique<torch::optim::SGD>(net.parameters(), lr);
      });
  return trainer;
}

TrainOptions options_in(const std::string& out_dir) {
  TrainOptions options = short_run(/*batch_size=*/8, /*shards=*/2);
  options.epochs(10);
  options.evaluation().every(5);
  options.checkpoint().save_best("loss");
  options.out_dir(out_dir);
  return options;
}

TEST(SaveBest, KeepsTheCheckpointOfTheBestEvaluation) {
  const TemporaryFolder folder;
  auto trainer = line_trainer(0.1);
  const RunReport report = trainer.fit(options_in(folder.path("run")));
  ASSERT_TRUE(report.best);
  EXPECT_EQ(report.best->step, 50);  // it gets better all the time
  EXPECT_EQ(report.best->value, report.test.metrics.at("loss"));
  EXPECT_EQ(read_checkpoint_info(find_checkpoint(folder.path("run/best"))).step,
            50);
  // The newest of the run is not mixed up with it.
  EXPECT_EQ(find_checkpoint(folder.path("run")),
            folder.path("run") + "/step-00000050");
}

// Nothing changes, so the first evaluation stays the best. A run ends with the
// step after the one that told it.
TEST(EarlyStop, EndsWhenNothingGetsBetter) {
  const TemporaryFolder folder;
  for (const int ranks : {1, 2}) {
    TrainOptions options = options_in(folder.path(std::to_string(ranks)));
    options.evaluation().early_stop(2);
    RunReport report;
    if (ranks == 1) {
      report = line_trainer(0).fit(options);
    } else {
      options.strategy(Strategy::kDistributed);
      options.devices().resize(2, options.devices()[0]);
      report = report_of_ranks(2, "auto", [&](const ProcessGroup& world) {
        const RunReport reported = line_trainer(0).fit(options, world);
        EXPECT_EQ(reported.steps, 16);
        return reported;
      });
    }
    EXPECT_EQ(report.steps, 16);
    EXPECT_EQ(report.best->step, 5);
    EXPECT_EQ(
        read_checkpoint_info(find_checkpoint(options.out_dir() + "/best")).step,
        5);
    options.strategy(Strategy::kSingle);
    options.devices().resize(1);
    options.checkpoint().resume("auto");
    const RunReport again = line_trainer(0).fit(options);
    EXPECT_EQ(again.steps, 16);
    EXPECT_EQ(again.parameter_sha256, report.parameter_sha256);
  }
}

TEST(SaveBest, NeedsEvaluations) {
  const TemporaryFolder folder;
  TrainOptions options = options_in(folder.path("run"));
  options.evaluation().enabled(false);
  EXPECT_EQ(error_code_of([&] { line_trainer(0.1).fit(options); }),
            ErrorCode::kBadOption);
}

TEST(CheckpointEachEpoch, SavesAtItsEnd) {
  const TemporaryFolder folder;
  TrainOptions options = options_in(folder.path("run"));
  options.checkpoint().each_epoch(true);
  options.checkpoint().keep(100);
  options.epochs(3);
  line_trainer(0.1).fit(options);
  for (const char* step : {"05", "10", "15"}) {
    EXPECT_TRUE(
        std::filesystem::is_directory(folder.path("run/step-000000") + step));
  }
}

}  // namespace
}  // namespace lockstep::training
