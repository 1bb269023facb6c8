#include "lockstep/losses/cross_entropy.h"

#include <gtest/gtest.h>
#include <torch/nn/functional/loss.h>

#include "tests/base/error_code_of.h"

namespace lockstep {
namespace {

using torch::Tensor;
using Options = torch::nn::functional::CrossEntropyFuncOptions;

constexpr int64_t kClasses = 5;
constexpr int64_t kBatch = 12;

struct Case {
  std::string name;
  Tensor logits;
  Tensor targets;
  Options options;
};

/// One class has no weight, unless `all_count`.
Tensor class_weights(bool all_count = false) {
  return torch::tensor({0.5, 2.0, all_count ? 0.1 : 0.0, 1.25, 3.0},
                       torch::kFloat64);
}

/// Every combination of shapes, ignored targets, class weights and smoothing.
std::vector<Case> all_cases() {
  torch::manual_seed(2);
  std::vector<Case> cases;
  for (const std::vector<int64_t>& places :
       {std::vector<int64_t>{}, {3}, {2, 3}}) {
    std::vector<int64_t> shape{kBatch, kClasses}, classes{kBatch};
    shape.insert(shape.end(), places.begin(), places.end());
    classes.insert(classes.end(), places.begin(), places.end());
    const Tensor logits = torch::randn(shape, torch::kFloat64);
    const Tensor plain = torch::randint(kClasses, classes, torch::kInt64);
    for (const bool weighs : {false, true}) {
      for (const double smoothing : {0.0, 0.1}) {
        for (const int64_t ignored : {-100, -1, 2}) {
          Options options;
          options.label_smoothing(smoothing).ignore_index(ignored);
          if (weighs) options.weight(class_weights(smoothing > 0));
          Tensor targets = plain.clone();
          if (ignored < 0) targets.slice(0, 0, 7).fill_(ignored);
          cases.push_back(
              {fmt::format("classes, {} dimensions, weights {}, "
                           "smoothing {}, ignored {}",
                           shape.size(), weighs, smoothing, ignored),
               logits, targets, options});
        }
        Options options;
        options.label_smoothing(smoothing);
        if (weighs) options.weight(class_weights());
        cases.push_back({fmt::format("probabilities, {} dimensions, weights "
                                     "{}, smoothing {}",
                                     shape.size(), weighs, smoothing),
                         logits, torch::softmax(torch::randn_like(logits), 1),
                         options});
      }
    }
  }
  return cases;
}

struct Result {
  double loss;
  Tensor gradient;
};

Result torch_result(const Case& one) {
  const Tensor logits = one.logits.clone().requires_grad_();
  const Tensor loss =
      torch::nn::functional::cross_entropy(logits, one.targets, one.options);
  loss.backward();
  return {loss.item<double>(), logits.grad()};
}

/// The loss and the gradient of a batch from those of its parts.
Result result_of_parts(const Case& one, int64_t part) {
  const Tensor logits = one.logits.clone().requires_grad_();
  Tensor sum = torch::zeros({}, torch::kFloat64);
  double weight = 0;
  for (int64_t begin = 0; begin < kBatch; begin += part) {
    const WeightedLoss part_loss =
        cross_entropy(logits.slice(0, begin, begin + part),
                      one.targets.slice(0, begin, begin + part), one.options);
    sum = sum + part_loss.loss * part_loss.weight;
    weight += part_loss.weight.item<double>();
  }
  const Tensor loss = sum / weight;
  loss.backward();
  return {loss.item<double>(), logits.grad()};
}

TEST(CrossEntropy, HasTheBitsOfTorch) {
  for (const Case& one : all_cases()) {
    const Result expected = torch_result(one);
    const Tensor logits = one.logits.clone().requires_grad_();
    const WeightedLoss loss = cross_entropy(logits, one.targets, one.options);
    loss.loss.backward();
    EXPECT_EQ(loss.loss.item<double>(), expected.loss) << one.name;
    EXPECT_TRUE(logits.grad().equal(expected.gradient)) << one.name;
    EXPECT_FALSE(loss.weight.requires_grad()) << one.name;
  }
}

// The first parts of the batch have no target that counts.
TEST(CrossEntropy, OfPartsMakesUpThatOfTheBatch) {
  for (const Case& one : all_cases()) {
    const Result expected = torch_result(one);
    for (const int64_t part : {1, 3, 5, 12}) {
      const Result result = result_of_parts(one, part);
      EXPECT_NEAR(result.loss, expected.loss, 1e-12) << one.name << part;
      EXPECT_TRUE(result.gradient.allclose(expected.gradient, 1e-10, 1e-13))
          << one.name << part;
    }
  }
}

double weight_of(const std::vector<int64_t>& targets,
                 const Options& options = {}) {
  const auto rows = static_cast<int64_t>(targets.size());
  return cross_entropy(torch::randn({rows, kClasses}, torch::kFloat64),
                       torch::tensor(targets, torch::kInt64), options)
      .weight.item<double>();
}

TEST(CrossEntropy, WeighsTheTargetsThatCount) {
  EXPECT_EQ(weight_of({0, 1, 2}), 3);
  EXPECT_EQ(weight_of({0, -100, 2, -100}), 2);
  EXPECT_EQ(weight_of({0, 3, 2, 3}, Options().ignore_index(3)), 2);
  // 0.5 + 2 + 0 + 3, and nothing for the ignored one.
  EXPECT_EQ(weight_of({0, 1, 2, -100, 4}, Options().weight(class_weights())),
            5.5);
  EXPECT_EQ(weight_of({4, 4}, Options().label_smoothing(0.2)), 2);
  EXPECT_EQ(weight_of({}), 0);
}

TEST(CrossEntropy, WeighsProbabilitiesByRow) {
  const Tensor logits = torch::randn({4, kClasses, 2, 3});
  const Tensor targets = torch::softmax(torch::randn_like(logits), 1);
  EXPECT_EQ(cross_entropy(logits, targets).weight.item<double>(), 24);
  // Torch divides by the rows, whatever the classes weigh.
  EXPECT_EQ(cross_entropy(logits, targets,
                          Options().weight(class_weights().to(torch::kFloat)))
                .weight.item<double>(),
            24);
}

TEST(CrossEntropy, TakesOneSampleWithoutABatch) {
  const Tensor logits = torch::randn({kClasses});
  const WeightedLoss loss = cross_entropy(logits, torch::tensor(3));
  EXPECT_EQ(loss.weight.item<double>(), 1);
  EXPECT_EQ(loss.loss.item<float>(),
            torch::nn::functional::cross_entropy(logits, torch::tensor(3))
                .item<float>());
  EXPECT_EQ(cross_entropy(logits, torch::tensor(-100)).loss.item<float>(), 0);
  EXPECT_EQ(
      cross_entropy(logits, torch::softmax(logits, 0)).weight.item<double>(),
      1);
}

void expect_nothing(const Tensor& logits, const Tensor& targets,
                    const Options& options, const char* what) {
  const Tensor leaf = logits.clone().requires_grad_();
  const WeightedLoss loss = cross_entropy(leaf, targets, options);
  EXPECT_EQ(loss.weight.item<double>(), 0) << what;
  EXPECT_EQ(loss.loss.item<double>(), 0) << what;
  EXPECT_EQ(loss.loss.dim(), 0) << what;
  loss.loss.backward();
  ASSERT_TRUE(leaf.grad().defined()) << what;
  EXPECT_TRUE(leaf.grad().equal(torch::zeros_like(leaf))) << what;
}

// Torch gives NaN for all of these.
TEST(CrossEntropy, IsZeroIfNothingCounts) {
  const Tensor logits = torch::randn({4, kClasses}, torch::kFloat64);
  const Tensor ignored = torch::full({4}, -100);
  // Class 2 has the weight 0.
  const Tensor weightless = torch::full({4}, 2);
  for (const double smoothing : {0.0, 0.1}) {
    const auto options = [&] { return Options().label_smoothing(smoothing); };
    expect_nothing(logits, ignored, options(), "all are ignored");
    expect_nothing(logits, ignored, options().weight(class_weights()),
                   "all are ignored, with class weights");
  }
  expect_nothing(logits, weightless, Options().weight(class_weights()),
                 "all are of a class without weight");
  expect_nothing(torch::randn({2, kClasses, 3}), torch::full({2, 3}, -100), {},
                 "all are ignored, in three dimensions");
  Tensor overflowed = logits.clone();
  overflowed[0].fill_(INFINITY);
  expect_nothing(overflowed, ignored, {}, "the logits are infinite");
}

TEST(CrossEntropy, OfNoSamplesIsZero) {
  expect_nothing(torch::randn({0, kClasses}), torch::zeros({0}, torch::kInt64),
                 {}, "no rows");
  expect_nothing(torch::randn({0, kClasses}), torch::zeros({0, kClasses}), {},
                 "no probabilities");
  expect_nothing(torch::randn({0, kClasses, 3}),
                 torch::zeros({0, 3}, torch::kInt64), {}, "no pictures");
}

TEST(CrossEntropy, RefusesWhatTorchRefuses) {
  const Tensor logits = torch::randn({3, kClasses});
  for (const int64_t target : {int64_t{-1}, int64_t{-99}, kClasses}) {
    const Tensor targets = torch::tensor({int64_t{0}, target, int64_t{1}});
    EXPECT_THROW(torch::nn::functional::cross_entropy(logits, targets),
                 c10::Error);
    EXPECT_THROW(cross_entropy(logits, targets), c10::Error) << target;
  }
  EXPECT_THROW(cross_entropy(logits, torch::zeros({2}, torch::kInt64)),
               c10::Error);
  EXPECT_THROW(cross_entropy(logits, torch::zeros({3})), c10::Error);
}

TEST(CrossEntropy, RefusesAnotherReductionThanTheMean) {
  const Tensor logits = torch::randn({3, kClasses});
  const Tensor targets = torch::zeros({3}, torch::kInt64);
  EXPECT_EQ(error_code_of([&] {
              cross_entropy(logits, targets, Options().reduction(torch::kSum));
            }),
            ErrorCode::kBadOption);
  EXPECT_EQ(error_code_of([&] {
              cross_entropy(logits, targets, Options().reduction(torch::kNone));
            }),
            ErrorCode::kBadOption);
}

// Torch's loss of the first row is infinite, and part of that of both.
TEST(CrossEntropy, RefusesToSmoothTargetsOfClassesWithoutWeight) {
  const Tensor logits = torch::randn({2, kClasses}, torch::kFloat64);
  const Tensor targets = torch::tensor({2, 0});
  const auto options = Options().weight(class_weights()).label_smoothing(0.1);
  EXPECT_EQ(cross_entropy(logits, targets, options).weight.item<double>(), 0.5);
  EXPECT_EQ(error_code_of([&] {
              cross_entropy(logits.slice(0, 0, 1), targets.slice(0, 0, 1),
                            options);
            }),
            ErrorCode::kBadLoss);
  // As the message recommends.
  expect_nothing(
      logits.slice(0, 0, 1),
      targets.slice(0, 0, 1).masked_fill(targets.slice(0, 0, 1) == 2, -100),
      options, "ignored");
  cross_entropy(logits.slice(0, 0, 1), targets.slice(0, 0, 1),
                Options().weight(class_weights(true)).label_smoothing(0.1));
}

TEST(CrossEntropy, TakesTargetsOfBytes) {
  const Tensor logits = torch::randn({3, kClasses});
  const Tensor targets = torch::tensor({4, 0, 1}).to(torch::kByte);
  EXPECT_EQ(cross_entropy(logits, targets).weight.item<double>(), 3);
}

}  // namespace
}  // namespace lockstep
