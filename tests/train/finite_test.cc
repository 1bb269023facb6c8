#include "lockstep/train/finite.h"

#include <limits>

#include <gtest/gtest.h>

#include "lockstep/train/metrics.h"
#include "tests/train/test_files.h"

namespace lockstep::train {
namespace {

constexpr float kInfinity = std::numeric_limits<float>::infinity();
constexpr float kNan = std::numeric_limits<float>::quiet_NaN();

struct FirstNotFinite : testing::Test {
  void SetUp() override {
    for (auto& parameter : module->parameters()) {
      parameter.mutable_grad() = torch::zeros_like(parameter);
    }
  }
  void spoil(torch::Tensor tensor, float value) {
    const torch::NoGradGuard no_grad;
    tensor.view(-1)[0] = value;
  }
  std::string where() { return first_not_finite(inputs, *module); }

  torch::nn::Linear module{2, 3};
  torch::Tensor inputs = torch::zeros({4, 2});
};

TEST_F(FirstNotFinite, LooksAtInputsThenParametersThenGradients) {
  EXPECT_PRED2(contains, where(), "the loss itself");
  spoil(module->bias.grad(), kInfinity);
  EXPECT_EQ(where(),
            "the gradient of parameter 'bias' (inf in 1 of 3 elements)");
  spoil(module->weight.grad(), kNan);
  EXPECT_PRED2(contains, where(), "the gradient of parameter 'weight' (nan");
  spoil(module->bias, kNan);
  EXPECT_EQ(where(), "parameter 'bias' (nan in 1 of 3 elements)");
  spoil(inputs, -kInfinity);
  EXPECT_EQ(where(), "the batch's inputs (inf in 1 of 8 elements)");
}

TEST_F(FirstNotFinite, IsNotDisturbedByAMissingGradient) {
  module->weight.mutable_grad() = torch::Tensor();
  spoil(module->bias.grad(), kNan);
  EXPECT_PRED2(contains, where(), "'bias'");
}

TEST(CountCorrect, CountsRowsWhoseTargetIsGreatest) {
  const auto logits = torch::tensor({{1.f, 2.f}, {3.f, 0.f}, {0.f, 1.f}});
  const auto targets = torch::tensor({1, 1, 1}, torch::kInt64);
  EXPECT_EQ(count_correct(logits, targets), 2);
}

TEST(RunningMean, WeighsBatchesByTheirSamples) {
  RunningMean mean;
  EXPECT_EQ(mean.loss(), 0);
  mean.add(1.0, 3, 3);
  mean.add(5.0, 0, 1);
  EXPECT_DOUBLE_EQ(mean.loss(), 2.0);
  EXPECT_DOUBLE_EQ(mean.accuracy(), 0.75);
  EXPECT_EQ(mean.samples(), 4);
}

}  // namespace
}  // namespace lockstep::train
