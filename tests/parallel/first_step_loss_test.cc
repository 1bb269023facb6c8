// The first step compares the loss of a batch with those of its parts.
#include <cmath>
#include <string>

#include <gtest/gtest.h>
#include <torch/optim/sgd.h>

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
      torch::optim::SGD sgd(net->parameters(), 0.1);
      const std::string before = bytes_of(*net);
      const std::string text = text_of_error(
          [&] {
            model->train_step(images(), uneven_targets(), each.loss, sgd);
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

/// A module that returns the loss of its inputs and classes, as language models
/// do that never make the logits of all tokens.
struct LossNetImpl : torch::nn::Cloneable<LossNetImpl> {
  explicit LossNetImpl(torch::Reduction::Reduction reduction)
      : reduction_(reduction) {
    reset();
  }
  void reset() override {
    fc = register_module("fc", torch::nn::Linear(6, 4));
    norm = register_module("norm", torch::nn::BatchNorm1d(6));
    dropout = register_module("dropout", torch::nn::Dropout(0.5));
  }
  Tensor forward(const Tensor& x, const Tensor& y) {
    return torch::cross_entropy_loss(dropout(fc(norm(x))), y, {}, reduction_,
                                     /*ignore_index=*/0);
  }
  torch::Reduction::Reduction reduction_;
  torch::nn::Linear fc{nullptr};
  torch::nn::BatchNorm1d norm{nullptr};
  torch::nn::Dropout dropout{nullptr};
};

StepResult step_of_loss_net(torch::Reduction::Reduction reduction,
                            const Tensor& labels,
                            const DataParallelOptions& options) {
  const DataParallel model(std::make_shared<LossNetImpl>(reduction), slices(2),
                           options);
  return model->train_step(
      std::make_tuple(images(), labels), labels,
      [](const Tensor& loss, const Tensor&) { return loss; });
}

TEST(FirstStepLoss, OfAModuleThatReturnsItsLossIsChecked) {
  const LogCapture log;
  const Tensor counted = classes().clamp_min(1);
  for (const int64_t shards : {2, 6}) {
    const auto options = DataParallelOptions().shards(shards);
    EXPECT_NO_THROW(step_of_loss_net(torch::Reduction::Mean, counted, options));
    EXPECT_PRED2(
        contains,
        text_of_error(
            [&] { step_of_loss_net(torch::Reduction::Sum, counted, options); },
            ErrorCode::kBadLoss),
        "LossReduction::kSum");
  }
  // The mean over the labels that are not ignored.
  const Tensor ignored = torch::tensor({0, 0, 0, 1, 2, 3, 1, 1, 1, 1, 1, 1});
  text_of_error(
      [&] {
        step_of_loss_net(torch::Reduction::Mean, ignored,
                         DataParallelOptions().shards(2));
      },
      ErrorCode::kBadLoss);
  EXPECT_EQ(log.text().find("could not check"), std::string::npos)
      << log.text();
}

// The check runs the module, which has BatchNorm and dropout.
TEST(FirstStepLoss, OfAModuleThatReturnsItsLossDoesNotChangeTheStep) {
  const Tensor labels = classes().clamp_min(1);
  const auto bits_after = [&](bool checks) {
    torch::manual_seed(3);
    const auto net = std::make_shared<LossNetImpl>(torch::Reduction::Mean);
    const DataParallel model(
        net, slices(2),
        DataParallelOptions().verify(checks ? Verify::kFirst : Verify::kNever));
    torch::optim::SGD sgd(net->parameters(), 0.1);
    for (int step = 0; step < 2; ++step) {
      model->train_step(
          std::make_tuple(images(), labels), labels,
          [](const Tensor& loss, const Tensor&) { return loss; }, sgd);
    }
    EXPECT_TRUE(net->is_training());
    return bytes_of(*net);
  };
  EXPECT_TRUE(bits_after(true) == bits_after(false));
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
