// The loss, its gradient and its weight against PyTorch's in Python, where the
// weight is what the sum has to be divided by to give the mean.
#include "lockstep/losses/cross_entropy.h"

#include <cmath>
#include <sstream>
#include <string>

#include <gtest/gtest.h>
#include <torch/nn/functional/loss.h>

#include "tests/checkpoint/python.h"

namespace lockstep {
namespace {

using torch::Tensor;

constexpr const char* kScript = R"(
import torch
import torch.nn.functional as F

torch.manual_seed(11)
logits = torch.randn(10, 6, 4, dtype=torch.float64)
targets = torch.randint(0, 6, (10, 4))
targets[:6] = -100
probabilities = torch.randn(10, 6, 4, dtype=torch.float64).softmax(1)
weights = torch.tensor([0.5, 2, 0, 1.25, 3, 1], dtype=torch.float64)
for target in (targets, probabilities):
    for weight in (None, weights):
        for smoothing in (0.0, 0.1):
            x = logits.clone().requires_grad_()
            options = dict(weight=weight, label_smoothing=smoothing)
            mean = F.cross_entropy(x, target, **options)
            total = F.cross_entropy(x, target, reduction='sum', **options)
            mean.backward()
            print(f'{mean.item():.17g} {x.grad.square().sum().item():.17g} '
                  f'{(total / mean).item():.17g}')
)";

TEST(CrossEntropyParity, AgreesWithPyTorch) {
  if (!python_has("torch")) GTEST_SKIP() << "this Python has no torch";
  std::istringstream lines(run_python(kScript));
  torch::manual_seed(11);
  const Tensor logits = torch::randn({10, 6, 4}, torch::kFloat64);
  const Tensor targets = torch::randint(0, 6, {10, 4}, torch::kInt64);
  targets.slice(0, 0, 6).fill_(-100);
  const Tensor probabilities =
      torch::randn({10, 6, 4}, torch::kFloat64).softmax(1);
  const Tensor weights =
      torch::tensor({0.5, 2.0, 0.0, 1.25, 3.0, 1.0}, torch::kFloat64);
  for (const Tensor& target : {targets, probabilities}) {
    for (const Tensor& weight : {Tensor(), weights}) {
      for (const double smoothing : {0.0, 0.1}) {
        const Tensor x = logits.clone().requires_grad_();
        const WeightedLoss loss =
            cross_entropy(x, target,
                          torch::nn::functional::CrossEntropyFuncOptions()
                              .weight(weight)
                              .label_smoothing(smoothing));
        loss.loss.backward();
        double mean = 0, squares = 0, units = 0;
        ASSERT_TRUE(lines >> mean >> squares >> units);
        EXPECT_NEAR(loss.loss.item<double>(), mean, 1e-12);
        EXPECT_NEAR(x.grad().square().sum().item<double>(), squares, 1e-12);
        EXPECT_NEAR(loss.weight.item<double>(), units, 1e-9);
      }
    }
  }
}

}  // namespace
}  // namespace lockstep
