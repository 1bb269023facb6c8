#include "lockstep/train/metrics.h"

#include <gtest/gtest.h>

namespace lockstep::training {
namespace {

TEST(Accuracy, IsTheFractionOfRowsWhoseTargetIsGreatest) {
  const auto logits = torch::tensor({{1.f, 2.f}, {3.f, 0.f}, {0.f, 1.f}});
  const auto targets = torch::tensor({1, 1, 1}, torch::kInt64);
  EXPECT_DOUBLE_EQ(accuracy(logits, targets).item<double>(), 2.0 / 3);
}

TEST(RunningMean, WeighsBatchesByTheirSamples) {
  RunningMean mean;
  EXPECT_TRUE(mean.means().empty());
  mean.add({{"loss", 1.0}, {"accuracy", 1.0}}, 3);
  mean.add({{"loss", 5.0}, {"accuracy", 0.0}}, 1);
  EXPECT_DOUBLE_EQ(mean.means().at("loss"), 2.0);
  EXPECT_DOUBLE_EQ(mean.means().at("accuracy"), 0.75);
  EXPECT_EQ(mean.samples(), 4);
  // As a run that goes on does.
  RunningMean second(mean.sums(), mean.samples());
  second.add({{"loss", 7.0}}, 4);
  EXPECT_DOUBLE_EQ(second.means().at("loss"), 4.5);
}

TEST(MetricText, SaysAnAccuracyInPerCent) {
  EXPECT_EQ(metric_text("accuracy", 0.51237), "acc 51.24%");
  EXPECT_EQ(metric_text("perplexity", 8.5), "perplexity 8.5000");
  const Metrics metrics{{"accuracy", 1}, {"loss", 2}, {"margin", 3}};
  EXPECT_EQ(loss_first(metrics).front().first, "loss");
  EXPECT_EQ(loss_first(metrics).size(), 3u);
}

}  // namespace
}  // namespace lockstep::training
