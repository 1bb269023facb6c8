#include "lockstep/parallel/ddp/all_gather_with_grad.h"

#include <atomic>

#include <gtest/gtest.h>
#include <torch/nn/functional/loss.h>
#include <torch/nn/functional/normalization.h>

#include "lockstep/base/error.h"
#include "lockstep/parallel/distributed_data_parallel.h"
#include "tests/base/temporary_folder.h"
#include "tests/parallel/ddp/ranks.h"

namespace lockstep::all_gather_with_grad_test {
namespace {

using namespace testing_ddp;  // NOLINT
using torch::Tensor;

constexpr int64_t kSamples = 4;  // of a rank

/// InfoNCE: sample i of `a` belongs to sample i of `b`, and to no other.
Tensor info_nce(const Tensor& a, const Tensor& b) {
  const auto options = torch::nn::functional::NormalizeFuncOptions().dim(1);
  const Tensor logits =
      torch::nn::functional::normalize(a, options)
          .matmul(torch::nn::functional::normalize(b, options).t()) /
      0.1;
  return torch::nn::functional::cross_entropy(
      logits, torch::arange(a.size(0)).to(a.device()));
}

Tensor view_of(int64_t number, int64_t first, int64_t count) {
  return inputs(first, count).to(torch::kDouble) + 0.3 * number;
}

std::shared_ptr<NetImpl> make_net() {
  auto net = filled(std::make_shared<NetImpl>());
  net->to(torch::kDouble);
  return net;
}

class AllGatherWithGrad : public OnBackends {};

INSTANTIATE_TEST_SUITE_P(Backends, AllGatherWithGrad,
                         testing::ValuesIn(tested::kind().backends),
                         [](const auto& info) { return info.param; });

TEST_P(AllGatherWithGrad, GivesAContrastiveLossTheGradientsOfTheWholeBatch) {
  for (const int ranks : {2, 3}) {
    for (const auto average :
         {GradientAverage::kRanks, GradientAverage::kSamples}) {
      const auto plain = make_net();
      const Tensor plain_loss =
          info_nce(plain->forward(view_of(0, 0, ranks * kSamples)),
                   plain->forward(view_of(1, 0, ranks * kSamples)));
      plain_loss.backward();
      const auto expected = gradients_of(*plain);
      const Tensor expected_loss = plain_loss.detach().cpu();
      EXPECT_EQ(
          on_ranks(
              ranks,
              [&](const ProcessGroup& world) {
                const auto net = make_net();
                const DistributedDataParallel<NetImpl> model(
                    net, world,
                    DistributedDataParallelOptions().average(average));
                const int64_t first = world.rank() * kSamples;
                Tensor loss = info_nce(
                    all_gather_with_grad(
                        world, model->forward(view_of(0, first, kSamples))),
                    all_gather_with_grad(
                        world, model->forward(view_of(1, first, kSamples))));
                check_same({loss}, {expected_loss}, 1e-12);
                loss.backward();
                check_same(gradients_of(*net), expected, 1e-12);
              }),
          "")
          << ranks << " ranks, average " << static_cast<int>(average);
    }
  }
}

TEST_P(AllGatherWithGrad, ConcatenatesInTheOrderOfTheRanksAndSumsGradients) {
  run_on_ranks(3, [](const ProcessGroup& world) {
    const int rank = world.rank();
    // With gaps, as a transposed tensor has.
    const Tensor own = torch::full({2, 4}, 10. + rank)
                           .t()
                           .contiguous()
                           .t()
                           .to(home())
                           .requires_grad_();
    const Tensor all = all_gather_with_grad(world, own);
    TORCH_CHECK(torch::equal(
        all.cpu(),
        torch::cat({torch::full({2, 4}, 10.), torch::full({2, 4}, 11.),
                    torch::full({2, 4}, 12.)})));
    // The gradient is an expanded number.
    (all * (rank + 1)).sum().backward();
    TORCH_CHECK(torch::equal(own.grad().cpu(), torch::full({2, 4}, 6.)),
                own.grad());
  });
}

TEST_P(AllGatherWithGrad, TakesTensorsWithoutGradAndWithoutSamples) {
  run_on_ranks(2, [](const ProcessGroup& world) {
    const Tensor labels = torch::tensor({world.rank()}).to(home());
    const Tensor all = all_gather_with_grad(world, labels);
    TORCH_CHECK(!all.requires_grad());
    TORCH_CHECK(torch::equal(all, torch::tensor({0, 1}, labels.options())));
    const Tensor none = torch::empty({0, 3}, home()).requires_grad_();
    const Tensor nothing = all_gather_with_grad(world, none);
    TORCH_CHECK(nothing.sizes() == torch::IntArrayRef({0, 3}));
    nothing.sum().backward();
    const torch::NoGradGuard no_grad;
    const Tensor row = torch::ones({1, 1}, home()).requires_grad_();
    TORCH_CHECK(all_gather_with_grad(world, row).size(0) == 2);
  });
}

TEST_P(AllGatherWithGrad, RefusesTensorsThatDifferOnEveryRank) {
  struct Case {
    Tensor on_rank_0, on_others;
    const char* expected;
    const char* got;
  };
  const std::vector<Case> cases{
      // As many bytes.
      {torch::ones({2, 3}), torch::ones({3, 2}),
       "expected Float [2, 3] that requires no grad",
       "got Float [3, 2] that requires no grad"},
      {torch::ones({2, 3}), torch::ones({2, 3}, torch::kInt), "Float [2, 3]",
       "Int [2, 3]"},
      {torch::ones({4}), torch::ones({3}), "Float [4]", "Float [3]"},
      {torch::ones({4}), torch::ones({4}).requires_grad_(),
       "Float [4] that requires no grad", "Float [4] that requires grad"},
  };
  for (const Case& one : cases) {
    std::atomic<int> refusals = 0;
    run_on_ranks(3, [&](const ProcessGroup& world) {
      try {
        const Tensor& own = world.rank() == 0 ? one.on_rank_0 : one.on_others;
        all_gather_with_grad(
            world, own.detach().to(home()).requires_grad_(own.requires_grad()));
      } catch (const ParallelError& error) {
        const std::string text = error.what();
        TORCH_CHECK(error.code() == ErrorCode::kCallsDiffer);
        TORCH_CHECK(contains(text, one.expected), text);
        TORCH_CHECK(contains(text, one.got), text);
        TORCH_CHECK(contains(text, "ranks 0 and 1"), text);
        ++refusals;
      }
      // The ranks can go on.
      all_gather_with_grad(world, torch::ones({1}, home()));
    });
    EXPECT_EQ(refusals, 3) << one.got;
  }
}

TEST_P(AllGatherWithGrad, RefusesADerivativeOfItsBackward) {
  const std::string failure = on_ranks(2, [](const ProcessGroup& world) {
    const Tensor own = torch::ones({2, 2}, home()).requires_grad_();
    const Tensor all = all_gather_with_grad(world, own);
    torch::autograd::grad({all.pow(2).sum()}, {own}, {},
                          /*retain_graph=*/true, /*create_graph=*/true);
  });
  EXPECT_PRED2(contains, failure, "[unsupported-graph]");
}

TEST(AllGatherWithGradOfOne, IsTheTensorItself) {
  const Tensor own = torch::ones({2, 2}).requires_grad_();
  EXPECT_TRUE(all_gather_with_grad(ProcessGroup(), own).is_same(own));
  EXPECT_THROW(all_gather_with_grad(ProcessGroup(), torch::ones({})),
               InvalidArgument);
  EXPECT_THROW(all_gather_with_grad(ProcessGroup(), Tensor()), InvalidArgument);
}

}  // namespace
}  // namespace lockstep::all_gather_with_grad_test
