// LibTorch's own modules, whose inputs and outputs may be undefined tensors.
#include <gtest/gtest.h>
#include <torch/torch.h>

#include "lockstep/parallel/ddp/distributed_data_parallel.h"
#include "tests/parallel/ddp/ranks.h"

namespace lockstep {
namespace {

using namespace testing_ddp;  // NOLINT
using torch::Tensor;

/// [length, batch, features], of sequences [first, first + count).
Tensor sequences(int64_t first, int64_t count) {
  return torch::arange(first * 24, (first + count) * 24, torch::kFloat)
      .mul(0.37)
      .sin()
      .view({count, 3, 8})
      .transpose(0, 1)
      .contiguous();
}

class DdpModules : public OnBackends {};

INSTANTIATE_TEST_SUITE_P(Backends, DdpModules, testing::Values("shm", "gloo"),
                         [](const auto& info) { return info.param; });

TEST_P(DdpModules, AttentionWithoutMasksAndWeights) {
  using Attention = torch::nn::MultiheadAttentionImpl;
  const auto loss = [](auto& model, const Tensor& x) {
    const auto [output, weights] =
        model->forward(x, x, x, Tensor(), /*need_weights=*/false);
    TORCH_CHECK(!weights.defined());
    return output.square().mean();
  };
  const torch::nn::MultiheadAttentionOptions options(8, 2);
  auto plain = filled(std::make_shared<Attention>(options));
  loss(plain, sequences(0, 2)).backward();
  EXPECT_EQ(on_ranks(2,
                     [&](World world) {
                       auto net = filled(std::make_shared<Attention>(options));
                       DistributedDataParallel<Attention> model(net, world);
                       loss(model, sequences(world.rank(), 1)).backward();
                       check_same(gradients_of(*net), gradients_of(*plain),
                                  1e-5);
                     }),
            "");
}

TEST_P(DdpModules, ATransformerWithoutMasks) {
  using Transformer = torch::nn::TransformerImpl;
  const auto options =
      torch::nn::TransformerOptions(8, 2, 1, 1).dim_feedforward(8).dropout(0);
  auto plain = filled(std::make_shared<Transformer>(options));
  plain->forward(sequences(0, 2), sequences(2, 2)).square().mean().backward();
  EXPECT_EQ(
      on_ranks(2,
               [&](World world) {
                 const int64_t r = world.rank();
                 auto net = filled(std::make_shared<Transformer>(options));
                 DistributedDataParallel<Transformer> model(net, world);
                 model
                     ->forward(sequences(r, 1), sequences(2 + r, 1), Tensor(),
                               Tensor())
                     .square()
                     .mean()
                     .backward();
                 check_same(gradients_of(*net), gradients_of(*plain), 1e-4);
               }),
      "");
}

}  // namespace
}  // namespace lockstep
