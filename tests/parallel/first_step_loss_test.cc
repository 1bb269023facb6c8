// The first step compares the loss of a batch with those of its parts.
#include <cmath>
#include <string>

#include <gtest/gtest.h>

#include "lockstep/base/log.h"
#include "lockstep/parallel/data_parallel.h"
#include "tests/parallel/first_step_cases.h"

namespace lockstep::first_step_test {
namespace {

TEST(FirstStepLoss, ThatIsNoMeanIsRefused) {
  for (const LossCase& each : refused_losses()) {
    for (const int64_t shards : {2, 3}) {
      Mlp net;
      const DataParallel model(net, slices(2),
                               DataParallelOptions().shards(shards));
      const auto sgd = optim::sgd(net->parameters(), 0.1);
      const std::string before = bytes_of(*net);
      const std::string text = text_of_error(
          [&] {
            model->train_step(images(), uneven_targets(), each.loss, *sgd);
          },
          ErrorCode::kBadLoss);
      EXPECT_PRED2(contains, text, each.advice);
      EXPECT_TRUE(bytes_of(*net) == before);
    }
  }
}

// The value is that of the mean, and the gradient is not.
TEST(FirstStepLoss, WithTheGradientOfAnotherLossIsRefused) {
  const auto loss = [](const Tensor& output, const Tensor& target) {
    return cross_entropy(output, target) + output.max() - output.max().detach();
  };
  for (const int64_t shards : {2, 3, 12}) {
    Mlp net;
    const DataParallel model(net, slices(2),
                             DataParallelOptions().shards(shards));
    EXPECT_PRED2(
        contains,
        text_of_error([&] { model->train_step(images(), classes(), loss); },
                      ErrorCode::kBadLoss),
        "its gradient at the outputs is not");
  }
}

TEST(FirstStepLoss, MayBeAnythingWithOneShard) {
  for (const LossCase& each : refused_losses()) {
    Mlp net;
    const DataParallel model(net, slices(1));
    EXPECT_NO_THROW(model->train_step(images(), uneven_targets(), each.loss));
  }
}

TEST(FirstStepLoss, IsCheckedForEachOfTwoLosses) {
  Mlp net;
  const DataParallel model(net, slices(2));
  model->train_step(images(), classes(), cross_entropy);
  text_of_error(
      [&] {
        model->train_step(images(), classes(),
                          [](const Tensor& output, const Tensor& target) {
                            return summed(output, target);
                          });
      },
      ErrorCode::kBadLoss);
}

TEST(FirstStepLoss, IsCheckedInTheFirstStepThatIsFinite) {
  Mlp net;
  const DataParallel model(net, slices(2));
  const Tensor broken = images().fill_(NAN);
  EXPECT_FALSE(model->train_step(broken, classes(), summed).is_finite);
  net->zero_grad();
  text_of_error([&] { model->train_step(images(), classes(), summed); },
                ErrorCode::kBadLoss);
}

TEST(FirstStepLoss, ThatDrawsRandomNumbersIsReportedOnce) {
  const LogCapture log;
  Mlp net;
  const DataParallel model(net, slices(2));
  for (int step = 0; step < 3; ++step) {
    model->train_step(images(), classes(), drawn);
  }
  const std::string text = log.text();
  EXPECT_PRED2(contains, text, "could not check the loss");
  EXPECT_EQ(text.find("could not check"), text.rfind("could not check"));
}

TEST(FirstStepLoss, WhoseTermsCancelOutIsComparedAsExactlyAsTheyAre) {
  const auto cancelling = [](const Tensor& output, const Tensor&) {
    return (output - output.detach().mean({1}, /*keepdim=*/true)).mean();
  };
  for (const int64_t shards : {2, 3, 4, 5}) {
    Mlp net;
    const DataParallel model(net, slices(2),
                             DataParallelOptions().shards(shards));
    EXPECT_NO_THROW(model->train_step(images(), classes(), cancelling));
  }
}

// The mean over no targets is NaN, the mean over all of them is not.
TEST(FirstStepLoss, OfAShardWhoseTargetsAreAllIgnoredIsRefused) {
  Mlp net;
  const DataParallel model(net, slices(2));
  text_of_error(
      [&] {
        model->train_step(images(),
                          torch::tensor({0, 0, 0, 0, 0, 0, 1, 2, 3, 1, 2, 3}),
                          ignoring);
      },
      ErrorCode::kBadLoss);
}

// Both shards have as many targets that count.
TEST(FirstStepLoss, ThatIgnoresTargetsIsFoundByItsSamples) {
  Mlp net;
  const DataParallel model(net, slices(2));
  const std::string text = text_of_error(
      [&] {
        model->train_step(images(),
                          torch::tensor({1, 0, 2, 0, 3, 1, 2, 0, 3, 0, 1, 2}),
                          ignoring);
      },
      ErrorCode::kBadLoss);
  EXPECT_PRED2(contains, text, "samples' losses");
}

// One of twelve: the losses of the shards agree to three digits, which is all
// that bfloat16 has.
TEST(FirstStepLoss, ThatIgnoresATargetIsFoundInBfloat16) {
  Mlp net;
  net->to(torch::kBFloat16);
  const DataParallel model(net, slices(2));
  const std::string text = text_of_error(
      [&] {
        model->train_step(images().to(torch::kBFloat16),
                          torch::tensor({1, 3, 2, 0, 3, 1, 2, 3, 3, 2, 1, 2}),
                          ignoring);
      },
      ErrorCode::kBadLoss);
  EXPECT_PRED2(contains, text, "samples' losses");
}

TEST(FirstStepLoss, WithWeightsThatDoNotAddUpIsRefused) {
  Mlp net;
  const DataParallel model(net, slices(2));
  const std::string text = text_of_error(
      [&] {
        model->train_step(
            images(), classes(),
            [](const Tensor& output, const Tensor& target) -> WeightedLoss {
              // The square of what it should be.
              return {cross_entropy(output, target),
                      target.size(0) * target.size(0)};
            });
      },
      ErrorCode::kBadLoss);
  EXPECT_PRED2(contains, text, "do not add up");
}

}  // namespace
}  // namespace lockstep::first_step_test
