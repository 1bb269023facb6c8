#include "lockstep/models/finite.h"

#include <limits>

#include <gtest/gtest.h>

#include "tests/base/temporary_folder.h"

namespace lockstep::models {
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
  std::string where() {
    std::vector<std::pair<std::string, torch::Tensor>> parameters;
    for (const auto& item : module->named_parameters()) {
      parameters.emplace_back(item.key(), item.value());
    }
    return first_not_finite({inputs}, parameters);
  }

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

}  // namespace
}  // namespace lockstep::models
