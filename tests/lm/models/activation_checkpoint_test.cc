#include <set>
#include <vector>

#include <ATen/autocast_mode.h>
#include <gtest/gtest.h>

#include "lockstep/device/random.h"
#include "lockstep/lm/models/language_model.h"

namespace lockstep::models {
namespace {

LanguageModelSpec small_spec(const char* name, double dropout) {
  LanguageModelSpec spec = language_spec(name);
  spec.vocabulary = 37;
  spec.context = 16;
  spec.layers = 3;
  spec.dropout = dropout;
  return spec;
}

std::vector<torch::Tensor> gradients_of(LanguageModel& model,
                                        const torch::Tensor& ids) {
  model.zero_grad();
  torch::manual_seed(11);
  model.forward(ids).square().mean().backward();
  std::vector<torch::Tensor> gradients;
  for (const auto& parameter : model.parameters()) {
    gradients.push_back(parameter.grad().clone());
  }
  return gradients;
}

void expect_equal(const std::vector<torch::Tensor>& found,
                  const std::vector<torch::Tensor>& expected) {
  ASSERT_EQ(found.size(), expected.size());
  for (size_t i = 0; i < found.size(); ++i) {
    EXPECT_TRUE(found[i].equal(expected[i])) << i;
  }
}

TEST(ActivationCheckpoint, GivesTheSameGradientsToTheBit) {
  for (const char* name : {"gpt-char", "llama-char"}) {
    const auto model = make_language_model(small_spec(name, 0));
    const auto ids = torch::randint(37, {2, 16}, torch::kInt64);
    const auto expected = gradients_of(*model, ids);
    model->set_recomputes_activations(true);
    expect_equal(gradients_of(*model, ids), expected);
  }
}

TEST(ActivationCheckpoint, DropsTheSameValuesAgain) {
  const auto model = make_language_model(small_spec("gpt-char", 0.3));
  const auto ids = torch::randint(37, {2, 16}, torch::kInt64);
  const auto expected = gradients_of(*model, ids);
  model->set_recomputes_activations(true);
  expect_equal(gradients_of(*model, ids), expected);
  // Like the engine, where each shard has its own random stream.
  const RandomScope scope(1, 2, 3);
  const auto within = gradients_of(*model, ids);
  EXPECT_FALSE(within[0].equal(expected[0]));
}

TEST(ActivationCheckpoint, LeavesTheRandomStreamWhereItWas) {
  const auto x = torch::ones({64}, torch::requires_grad());
  const auto draw = [&](bool with_backward) {
    torch::manual_seed(5);
    const auto y = activation_checkpoint(
        [](const torch::Tensor& input) {
          return torch::dropout(input, 0.5, true);
        },
        x, {});
    if (with_backward) y.sum().backward();
    return torch::rand({4});
  };
  EXPECT_TRUE(draw(true).equal(draw(false)));
}

// Returns the number of nodes of a graph. Each node keeps what its backward
// needs.
size_t nodes_of(const torch::Tensor& loss) {
  std::set<torch::autograd::Node*> seen;
  std::vector<torch::autograd::Node*> open{loss.grad_fn().get()};
  while (!open.empty()) {
    auto* node = open.back();
    open.pop_back();
    if (node == nullptr || !seen.insert(node).second) continue;
    for (const auto& edge : node->next_edges()) {
      open.push_back(edge.function.get());
    }
  }
  return seen.size();
}

TEST(ActivationCheckpoint, MakesOneNodeOfABlock) {
  const auto model = make_language_model(small_spec("gpt-char", 0));
  const auto ids = torch::randint(37, {2, 16}, torch::kInt64);
  const size_t with_all = nodes_of(model->forward(ids).sum());
  model->set_recomputes_activations(true);
  // The model has three blocks with more than ten operators each.
  EXPECT_LT(nodes_of(model->forward(ids).sum()) + 30, with_all);
}

TEST(ActivationCheckpoint, ComputesInTheTypeThatAutocastHad) {
  const auto weight = torch::randn({8, 8}, torch::requires_grad());
  const auto x = torch::randn({4, 8}, torch::requires_grad());
  std::vector<torch::ScalarType> types;
  at::autocast::set_autocast_enabled(at::kCPU, true);
  const auto y = activation_checkpoint(
      [&](const torch::Tensor& input) {
        auto product = torch::mm(input, weight);
        types.push_back(product.scalar_type());
        return product;
      },
      x, {weight});
  at::autocast::set_autocast_enabled(at::kCPU, false);
  at::autocast::clear_cache();
  y.sum().backward();
  EXPECT_EQ(types, (std::vector<torch::ScalarType>(2, torch::kBFloat16)));
}

}  // namespace
}  // namespace lockstep::models
