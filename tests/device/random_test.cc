#include "lockstep/device/random.h"

#include <functional>
#include <set>
#include <thread>
#include <utility>

#include <ATen/CPUGeneratorImpl.h>
#include <ATen/core/dispatch/Dispatcher.h>
#include <gtest/gtest.h>
#include <torch/nn/modules/linear.h>
#include <torch/types.h>
#include <torch/utils.h>

#include "lockstep/base/cores.h"
#include "lockstep/device/worker.h"

namespace lockstep {
namespace {

struct Draw {
  std::string name;
  std::function<torch::Tensor()> make;
};

// What models, initialisers and samplers draw with, by the ways they reach the
// generator: factories, in-place, out of composites and of fused kernels.
const std::vector<Draw>& draws() {
  static const std::vector<Draw> all = {
      {"rand", [] { return torch::rand({50}); }},
      {"rand_like", [] { return torch::rand_like(torch::ones({50})); }},
      {"randn", [] { return torch::randn({50}); }},
      {"randint", [] { return torch::randint(1000, {50}); }},
      {"randint_like",
       [] { return torch::randint_like(torch::ones({50}), 1000); }},
      {"randperm", [] { return torch::randperm(50); }},
      {"normal_", [] { return torch::empty({50}).normal_(); }},
      {"normal", [] { return at::normal(torch::ones({50}), 2.0); }},
      {"uniform_", [] { return torch::empty({50}).uniform_(); }},
      {"bernoulli", [] { return torch::full({50}, 0.5).bernoulli(); }},
      {"bernoulli_", [] { return torch::empty({50}).bernoulli_(0.5); }},
      {"exponential_", [] { return torch::empty({50}).exponential_(); }},
      {"multinomial",
       [] { return torch::multinomial(torch::ones({100}), 20); }},
      {"poisson", [] { return torch::poisson(torch::full({50}, 9.0)); }},
      {"dropout", [] { return torch::dropout(torch::ones({50}), 0.5, true); }},
      {"native_dropout",
       [] {
         return std::get<0>(
             torch::native_dropout(torch::ones({50}), 0.5, true));
       }},
      {"feature_dropout",
       [] {
         return torch::feature_dropout(torch::ones({20, 20, 2}), 0.5, true);
       }},
      {"alpha_dropout",
       [] { return torch::alpha_dropout(torch::ones({50}), 0.5, true); }},
      {"rrelu",
       [] { return torch::rrelu(torch::full({50}, -1.0), 0.1, 0.9, true); }},
      {"attention",
       [] {
         const auto q = torch::ones({1, 1, 8, 4});
         return at::scaled_dot_product_attention(q, q, q, {}, 0.5);
       }},
      {"dropout with a gradient",
       [] {
         auto x = torch::ones({50}, torch::requires_grad());
         torch::dropout(x, 0.5, true).sum().backward();
         return x.grad();
       }},
      {"kaiming_uniform_",
       [] { return torch::nn::Linear(10, 5)->weight.detach().clone(); }},
  };
  return all;
}

torch::Tensor draw(const Draw& what, uint64_t shard) {
  const RandomScope scope(1, 2, shard);
  return what.make();
}

torch::Tensor default_state() {
  return at::detail::getDefaultCPUGenerator().get_state();
}

TEST(RandomScope, GivesTheSameNumbersForTheSameKey) {
  for (const auto& what : draws()) {
    EXPECT_TRUE(torch::equal(draw(what, 0), draw(what, 0))) << what.name;
    EXPECT_FALSE(torch::equal(draw(what, 0), draw(what, 1))) << what.name;
  }
}

TEST(RandomScope, GivesOtherNumbersInEachPhase) {
  const auto drawn = [](uint64_t phase) {
    const RandomScope scope(1, 2, 3, phase);
    return torch::rand({20});
  };
  EXPECT_TRUE(drawn(0).equal(draw(draws().front(), 3).narrow(0, 0, 20)));
  EXPECT_TRUE(drawn(1).equal(drawn(1)));
  EXPECT_FALSE(drawn(0).equal(drawn(1)));
  EXPECT_FALSE(drawn(1).equal(drawn(2)));
}

TEST(RandomScope, LeavesTheSharedGeneratorAlone) {
  for (const auto& what : draws()) {
    const auto before = default_state();
    draw(what, 0);
    EXPECT_TRUE(torch::equal(before, default_state())) << what.name;
  }
}

TEST(RandomScope, DrawsAsAnExplicitGeneratorWould) {
  auto generator = at::make_generator<at::CPUGeneratorImpl>(mix_seed(7, 8, 9));
  const auto first = at::randn({33}, generator);
  const auto second = at::empty({33}).uniform_(0, 1, generator);
  const RandomScope scope(7, 8, 9);
  EXPECT_TRUE(torch::equal(torch::randn({33}), first));
  EXPECT_TRUE(torch::equal(torch::empty({33}).uniform_(), second));
}

TEST(RandomScope, LeavesAnExplicitGeneratorAlone) {
  auto generator = at::make_generator<at::CPUGeneratorImpl>(5);
  const auto expected = at::randn({9}, generator);
  const RandomScope scope(1, 2, 3);
  auto again = at::make_generator<at::CPUGeneratorImpl>(5);
  EXPECT_TRUE(torch::equal(at::randn({9}, again), expected));
}

TEST(RandomScope, GivesThreadsAtOnceWhatTheyGetOneAfterAnother) {
  for (const auto& what : draws()) {
    std::array<torch::Tensor, 2> at_once;
    std::vector<std::thread> threads;
    for (const size_t shard : {0, 1}) {
      threads.emplace_back([&, shard] {
        for (int i = 0; i < 20; ++i) at_once[shard] = draw(what, shard);
      });
    }
    for (auto& thread : threads) thread.join();
    for (const size_t shard : {0, 1}) {
      EXPECT_TRUE(torch::equal(at_once[shard], draw(what, shard))) << what.name;
    }
  }
}

TEST(RandomScope, EndsWithItsLife) {
  torch::manual_seed(3);
  const auto expected = torch::rand({5});
  torch::manual_seed(3);
  draw(draws().front(), 0);
  EXPECT_TRUE(torch::equal(torch::rand({5}), expected));
}

TEST(RandomScope, Nests) {
  torch::Tensor expected;
  {
    const RandomScope scope(1, 1, 1);
    torch::rand({5});
    expected = torch::rand({5});
  }
  const RandomScope outer(1, 1, 1);
  torch::rand({5});
  { const RandomScope inner(2, 2, 2); }
  EXPECT_TRUE(torch::equal(torch::rand({5}), expected));
}

TEST(RandomScope, IsNotSharedWithAWorkerThatItsThreadStarts) {
  Worker worker({c10::kCPU, 0, 1}, 1);
  const RandomScope scope(4, 5, 6);
  const auto state = default_state();
  torch::Tensor own;
  worker.start([&own] {
    torch::rand({3});
    const RandomScope inner(4, 5, 6);
    own = torch::rand({3});
  });
  worker.wait();
  EXPECT_FALSE(torch::equal(state, default_state()))
      << "the worker's first draw did not come from the shared generator";
  EXPECT_TRUE(torch::equal(torch::rand({3}), own));
}

TEST(RandomScope, DoesNotDisturbOtherDevices) {
  const RandomScope scope(1, 2, 3);
  EXPECT_TRUE(torch::rand({3}, torch::kMeta).is_meta());
  EXPECT_TRUE(torch::empty({3}, torch::kMeta).normal_().is_meta());
}

TEST(RandomScope, CoversEveryOperatorThatTakesAGenerator) {
  int covered = 0;
  auto& dispatcher = c10::Dispatcher::singleton();
  for (const auto& name : dispatcher.getAllOpNames()) {
    const auto op = dispatcher.findSchema(name);
    if (!op || name.name.rfind("aten::", 0) != 0) continue;
    const auto text = c10::toString(op->schema());
    if (text.find("Generator?") == std::string::npos) continue;
    ++covered;
    EXPECT_TRUE(
        op->hasKernelForDispatchKey(c10::DispatchKey::TESTING_ONLY_GenericMode))
        << text;
  }
  EXPECT_GT(covered, 50);
}

TEST(MixSeed, TellsEveryArgumentApart) {
  std::set<uint64_t> seen;
  for (uint64_t a = 0; a < 6; ++a) {
    for (uint64_t b = 0; b < 6; ++b) {
      for (uint64_t c = 0; c < 6; ++c) {
        for (uint64_t d = 0; d < 6; ++d) seen.insert(mix_seed(a, b, c, d));
      }
    }
  }
  EXPECT_EQ(seen.size(), 6u * 6 * 6 * 6);
}

TEST(MixSeed, FlipsHalfTheBitsWhenOneBitChanges) {
  double flipped = 0;
  for (int bit = 0; bit < 64; ++bit) {
    flipped += std::popcount(mix_seed(1, 2, 3) ^
                             mix_seed(1, 2, 3 ^ (uint64_t{1} << bit)));
  }
  EXPECT_NEAR(flipped / 64, 32, 4);
}

}  // namespace
}  // namespace lockstep
