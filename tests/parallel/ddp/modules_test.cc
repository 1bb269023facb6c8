// Tests LibTorch's own modules, which may have undefined tensors as inputs and
// outputs.
#include <gtest/gtest.h>
#include <torch/nn/cloneable.h>
#include <torch/nn/module.h>
#include <torch/nn/modules/activation.h>
#include <torch/nn/modules/batchnorm.h>
#include <torch/nn/modules/container/sequential.h>
#include <torch/nn/modules/embedding.h>
#include <torch/nn/modules/linear.h>
#include <torch/nn/modules/transformer.h>
#include <torch/types.h>

#include "lockstep/parallel/distributed_data_parallel.h"
#include "tests/base/temporary_folder.h"
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

INSTANTIATE_TEST_SUITE_P(Backends, DdpModules, testing::Values("shm", "tcp"),
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
  run_on_ranks(2, [&](ProcessGroup world) {
    auto net = filled(std::make_shared<Attention>(options));
    DistributedDataParallel<Attention> model(net, world);
    loss(model, sequences(world.rank(), 1)).backward();
    check_same(gradients_of(*net), gradients_of(*plain), 1e-5);
  });
}

TEST_P(DdpModules, ATransformerWithoutMasks) {
  using Transformer = torch::nn::TransformerImpl;
  const auto options =
      torch::nn::TransformerOptions(8, 2, 1, 1).dim_feedforward(8).dropout(0);
  auto plain = filled(std::make_shared<Transformer>(options));
  plain->forward(sequences(0, 2), sequences(2, 2)).square().mean().backward();
  run_on_ranks(2, [&](ProcessGroup world) {
    const int64_t r = world.rank();
    auto net = filled(std::make_shared<Transformer>(options));
    DistributedDataParallel<Transformer> model(net, world);
    model->forward(sequences(r, 1), sequences(2 + r, 1), Tensor(), Tensor())
        .square()
        .mean()
        .backward();
    check_same(gradients_of(*net), gradients_of(*plain), 1e-4);
  });
}

/// A module with parameters of every shape and type.
struct OddImpl : torch::nn::Module {
  OddImpl() {
    number = register_parameter("number", torch::tensor(2.0F));
    none = register_parameter("none", torch::zeros({0, 3}, torch::kDouble));
    wave = register_parameter("wave", torch::zeros({3}, torch::kComplexFloat));
    half = register_parameter("half", torch::ones({4}, torch::kBFloat16));
    turned = register_parameter("turned", torch::ones({3, 4}).t());
  }
  Tensor forward(Tensor x) {
    return (x * number).sum() + none.sum().to(torch::kFloat) +
           torch::real(wave * x[0][0]).sum() +
           (half * x[0]).to(torch::kFloat).sum() +
           (turned * x[0].unsqueeze(1)).sum();
  }
  Tensor number, none, wave, half, turned;
};

TEST_P(DdpModules, OddParametersAreAveragedAsAnyOther) {
  std::vector<std::vector<Tensor>> plain;
  for (int64_t sample = 0; sample < 2; ++sample) {
    OddImpl odd;
    odd.forward(inputs(sample, 1)).backward();
    plain.push_back(gradients_of(odd));
  }
  run_on_ranks(2, [&](ProcessGroup world) {
    auto net = std::make_shared<OddImpl>();
    DistributedDataParallel<OddImpl> model(net, world);
    for (int step = 0; step < 2; ++step) {
      net->zero_grad();
      model(inputs(world.rank(), 1)).backward();
      const auto got = gradients_of(*net);
      for (size_t p = 0; p < got.size(); ++p) {
        check_same({got[p]}, {(plain[0][p] + plain[1][p]) / 2}, 1e-2);
      }
    }
  });
}

struct CriticImpl : torch::nn::Cloneable<CriticImpl> {
  CriticImpl() { reset(); }
  void reset() override {
    fc = register_module("fc", torch::nn::Linear(4, 4));
    norm = register_module("norm", torch::nn::BatchNorm1d(4));
  }
  Tensor forward(const Tensor& x) { return norm(fc(x)); }
  torch::nn::Linear fc{nullptr};
  torch::nn::BatchNorm1d norm{nullptr};
};

// In PyTorch each forward gives all ranks the buffers of rank 0.
TEST_P(DdpModules, AFrozenDiscriminatorHasTheSameBuffersOnEveryRank) {
  run_on_ranks(2, [](ProcessGroup world) {
    torch::nn::Linear generator(4, 4);
    filled(generator.ptr());
    const auto critic = filled(std::make_shared<CriticImpl>());
    DistributedDataParallel<CriticImpl> model(critic, world);
    for (int step = 0; step < 2; ++step) {
      const Tensor noise = inputs(8 * step + 4 * world.rank(), 4);
      model->forward(generator->forward(noise).detach()).sum().backward();
      for (auto& parameter : critic->parameters()) {
        parameter.requires_grad_(false);
      }
      model->forward(generator->forward(noise)).square().sum().backward();
      for (auto& parameter : critic->parameters()) {
        parameter.requires_grad_(true);
      }
    }
    for (const auto& buffer : critic->buffers()) {
      const auto all = world.all_gather(buffer).result();
      TORCH_CHECK(torch::equal(all[0], all[1]));
    }
  });
}

// A rank may look at what a trained critic thinks of an input.
TEST_P(DdpModules, AFrozenEvaluatorSendsNothing) {
  run_on_ranks(2, [](ProcessGroup world) {
    const auto critic = filled(std::make_shared<CriticImpl>());
    DistributedDataParallel<CriticImpl> model(critic, world);
    const Tensor x = inputs(4 * world.rank(), 4);
    model->forward(x).sum().backward();
    critic->eval();
    for (auto& parameter : critic->parameters()) {
      parameter.requires_grad_(false);
    }
    const uint64_t before = world.sequence_number();
    const Tensor input = x.clone().requires_grad_();
    model->forward(input).sum().backward();
    TORCH_CHECK(input.grad().defined());
    TORCH_CHECK(world.sequence_number() == before);
  });
}

// It can't be computed for one sample, so its value is not checked. Neither is
// its gradient then.
TEST_P(DdpModules, ALossOverPairsOfSamplesIsNotRefused) {
  run_on_ranks(2, [](ProcessGroup world) {
    const auto net = filled(std::make_shared<NetImpl>());
    DistributedDataParallel<NetImpl> model(net, world);
    auto sgd = torch::optim::SGD(net->parameters(), 0.1);
    model->train_step(
        inputs(4 * world.rank(), 4), targets(4 * world.rank(), 4),
        [](const Tensor& output, const Tensor&) {
          TORCH_CHECK(output.size(0) > 1, "no pair");
          return (output.slice(0, 1) - output.slice(0, 0, -1)).square().mean();
        },
        sgd);
  });
}

TEST_P(DdpModules, WithSparseGradientsAreRefused) {
  struct WordsImpl : torch::nn::Module {
    WordsImpl() {
      words = register_module(
          "words",
          torch::nn::Embedding(torch::nn::EmbeddingOptions(5, 2).sparse(true)));
    }
    Tensor forward(Tensor x) { return words(x); }
    torch::nn::Embedding words{nullptr};
  };
  const std::string failure = on_ranks(2, [](ProcessGroup world) {
    DistributedDataParallel<WordsImpl> model(std::make_shared<WordsImpl>(),
                                             world);
    model(torch::tensor({1, 2})).sum().backward();
  });
  EXPECT_PRED2(contains, failure, "[bad-tensor]");
}

}  // namespace
}  // namespace lockstep
