#include <string>
#include <vector>

#include <gtest/gtest.h>
#include <torch/nn/functional/loss.h>
#include <torch/nn/init.h>
#include <torch/nn/modules/activation.h>
#include <torch/nn/modules/container/sequential.h>
#include <torch/nn/modules/linear.h>
#include <torch/optim/sgd.h>

#include "lockstep/base/error.h"
#include "lockstep/models/model.h"
#include "tests/base/temporary_folder.h"

namespace lockstep::models {
namespace {

TEST(Mlp, NamesItsParametersAsSequentialDoes) {
  const auto model =
      make({.name = "mlp", .in_features = 8, .width = 4, .depth = 2});
  EXPECT_EQ(model->named_parameters().keys(),
            (std::vector<std::string>{"0.weight", "0.bias", "2.weight",
                                      "2.bias", "4.weight", "4.bias"}));
}

TEST(Mlp, ComputesWhatSequentialDoes) {
  const ModelSpec spec = {
      .name = "mlp", .classes = 5, .in_features = 8, .width = 6, .depth = 2};
  torch::manual_seed(1);
  const auto model = make(spec);
  torch::manual_seed(1);
  torch::nn::Sequential oracle(torch::nn::Linear(8, 6), torch::nn::ReLU(),
                               torch::nn::Linear(6, 6), torch::nn::ReLU(),
                               torch::nn::Linear(6, 5));
  for (const char* hidden : {"0.weight", "2.weight"}) {
    torch::nn::init::kaiming_normal_(oracle->named_parameters()[hidden], 0,
                                     torch::kFanIn, torch::kReLU);
  }
  const auto x = torch::randn({7, 8});
  const auto y = model->forward(x);
  const auto expected = oracle->forward(x);
  EXPECT_TRUE(y.equal(expected));
  y.square().sum().backward();
  expected.square().sum().backward();
  for (const auto& item : oracle->named_parameters()) {
    EXPECT_TRUE(
        model->named_parameters()[item.key()].grad().equal(item.value().grad()))
        << item.key();
  }
}

// He et al. 2015: a ReLU loses half of its input, and twice the variance of the
// weights makes up for it. With nn.Linear's own weights, an output was 0.005 of
// its input.
TEST(Mlp, PassesOnWhatItGetsThroughAllLayers) {
  torch::manual_seed(1);
  const auto model = make({.name = "mlp"});
  const torch::NoGradGuard no_grad;
  auto y = torch::randn({256, 1024});
  const auto parameters = model->named_parameters();
  for (const char* layer : {"0", "2", "4", "6", "8", "10"}) {
    y = torch::linear(y, parameters[std::string(layer) + ".weight"]).relu();
    EXPECT_NEAR(y.square().mean().item<double>(), 1, 0.3) << layer;
  }
}

TEST(Mlp, LearnsWithin30Steps) {
  torch::manual_seed(1);
  const auto model = make({.name = "mlp"});
  const auto x = torch::randn({64, 1024});
  const auto targets = torch::arange(64).remainder(10);
  torch::optim::SGD sgd(model->parameters(),
                        torch::optim::SGDOptions(0.02).momentum(0.9));
  double loss = 0;
  for (int step = 0; step < 30; ++step) {
    sgd.zero_grad();
    const auto mean =
        torch::nn::functional::cross_entropy(model->forward(x), targets);
    mean.backward();
    sgd.step();
    loss = mean.item<double>();
  }
  EXPECT_LT(loss, 1);  // a guess has ln(10) = 2.30
}

TEST(Mlp, FlattensImages) {
  const auto model =
      make({.name = "mlp", .in_features = 12, .width = 4, .depth = 1});
  const auto x = torch::randn({2, 3, 2, 2});
  EXPECT_TRUE(model->forward(x).equal(model->forward(x.flatten(1))));
}

TEST(Mlp, SaysWhatInputItTakes) {
  const auto model =
      make({.name = "mlp", .in_features = 12, .width = 4, .depth = 1});
  EXPECT_EQ(error_of<InvalidArgument>([&] {
              model->forward(torch::randn({2, 3, 2, 3}));
            }),
            "[models] mlp can't take this input; expected (N, ...) with "
            "12 values a sample, got (2, 3, 2, 3); build the mlp with "
            "the in_features of the data [bad-tensor]");
  EXPECT_THROW(model->forward(torch::randn({12})), InvalidArgument);
  EXPECT_THROW(model->forward(torch::tensor(1.0)), InvalidArgument);
}

TEST(Mlp, TakesAnEmptyBatch) {
  const auto model =
      make({.name = "mlp", .in_features = 12, .width = 4, .depth = 1});
  EXPECT_EQ(model->forward(torch::randn({0, 3, 2, 2})).sizes(),
            (std::vector<int64_t>{0, 10}));
}

}  // namespace
}  // namespace lockstep::models
