// GradientSync with buckets and ranks, StepSum, and the ranks' reports.
#include "lockstep/parallel/exchange/gradient_sync.h"

#include <cstddef>
#include <functional>
#include <string>
#include <utility>
#include <vector>

#include <gtest/gtest.h>
#include <torch/types.h>

#include "lockstep/base/error.h"
#include "lockstep/parallel/exchange/partition.h"
#include "lockstep/parallel/exchange/rank_exchange.h"
#include "lockstep/parallel/exchange/step_sum.h"
#include "tests/parallel/ddp/ranks.h"

namespace lockstep::gradient_sync_test {
namespace {

using testing_ddp::failure_of;
using torch::Tensor;

const std::vector<std::string> kNames{"first", "second", "third"};

std::vector<Tensor> three_parameters() {
  return {torch::zeros({4}), torch::zeros({2, 3}), torch::zeros({5})};
}

GradientSync sync_of(const ProcessGroup& world) {
  return {world, three_parameters(), kNames, 1 << 20};
}

const std::vector<int64_t> kOneEach{1, 1, 1};

TEST(GradientSync, NamesTheParameterOfACallOutOfTurn) {
  GradientSync sync = sync_of(ProcessGroup());
  sync.begin(kOneEach, 1);
  try {
    sync.send(1);
    FAIL() << "sent a gradient that has not come";
  } catch (const ParallelError& error) {
    EXPECT_EQ(error.code(), ErrorCode::kMisuse);
    const std::string text = error.what();
    EXPECT_NE(text.find("kSend"), std::string::npos) << text;
    EXPECT_NE(text.find("'second' in kAwaited"), std::string::npos) << text;
  }
  EXPECT_THROW(sync.begin(kOneEach, 1), ParallelError);
  EXPECT_THROW(sync.finish(), ParallelError);
}

TEST(GradientSync, HasTheRestInTheOrderOfTheBuckets) {
  GradientSync sync = sync_of(ProcessGroup());
  sync.begin(kOneEach, 1);
  EXPECT_EQ(sync.unsent(), (std::vector<size_t>{2, 1, 0}));
  EXPECT_EQ(sync.arrive(1), SyncOutcome::kComplete);
  sync.send(1);
  EXPECT_EQ(sync.unsent(), (std::vector<size_t>{2, 0}));
}

TEST(GradientSync, FollowsTheOrderOfTheFirstStepOnce) {
  GradientSync sync = sync_of(ProcessGroup());
  const auto step = [&](const std::vector<size_t>& order) {
    sync.begin(kOneEach, 1);
    for (const size_t p : order) {
      sync.arrive(p);
      sync.send(p);
    }
    sync.flush();
    sync.finish();
    sync.end_step();
  };
  EXPECT_FALSE(sync.knows_order());
  step({1, 2, 0});
  EXPECT_TRUE(sync.knows_order());
  sync.follow_order(0);
  EXPECT_EQ(sync.buckets().assignment()[0], (std::vector<size_t>{1, 2, 0}));
  step({0, 1, 2});
  sync.follow_order(0);
  EXPECT_EQ(sync.buckets().assignment()[0], (std::vector<size_t>{1, 2, 0}));
}

// Rank 1 fails in the middle of a step, and both make the next one.
TEST(GradientSync, ARankThatFailsTakesPartInTheSumsOfTheOthers) {
  for (const char* backend : {"shm", "tcp"}) {
    const auto task = [](ProcessGroup world) {
      GradientSync sync = sync_of(world);
      for (const bool fails : {true, false}) {
        sync.begin(kOneEach, 1);
        for (const size_t p : {2, 0, 1}) {
          if (fails && world.rank() == 1 && p == 0) break;
          sync.arrive(p);
          sync.buckets().view(p).fill_(world.rank() + 1);
          sync.send(p);
        }
        if (fails && world.rank() == 1) {
          sync.abandon(GradientSync::Peers::kWait);
          continue;
        }
        sync.flush();
        sync.finish();
        sync.end_step();
        TORCH_CHECK(sync.buckets().view(2).eq(3).all().item<bool>());
      }
      TORCH_CHECK(sync.buckets().view(0).eq(3).all().item<bool>());
    };
    EXPECT_EQ(failure_of(2, backend, task), "") << backend;
  }
}

/// Leaves whose gradients are set by hand, as a backward would.
struct Backward {
  explicit Backward(StepSum& sum) : sum(sum) {
    for (const Tensor& parameter : three_parameters()) {
      leaves.push_back(parameter.clone().requires_grad_());
    }
  }
  void arrive(size_t p, double value) {
    Tensor& gradient = leaves[p].mutable_grad();
    const Tensor part = torch::full_like(leaves[p].detach(), value);
    gradient = gradient.defined() ? gradient + part : part;
    sum.add(p, leaves[p]);
  }
  std::vector<OwnedGradient> rest() {
    std::vector<OwnedGradient> gradients;
    for (const Tensor& leaf : leaves) {
      gradients.push_back(OwnedGradient::take(
          std::exchange(leaf.mutable_grad(), Tensor()), leaf));
    }
    return gradients;
  }

  StepSum& sum;
  std::vector<Tensor> leaves;
};

void on_two_ranks(
    const std::function<void(const ProcessGroup& world, StepSum& sum)>& task) {
  const auto for_rank = [&](ProcessGroup world) {
    StepSum sum(world, three_parameters(), kNames, {});
    task(world, sum);
  };
  EXPECT_EQ(failure_of(2, "tcp", for_rank), "");
}

/// Makes a step in which the gradients of `order` come, each with the value
/// rank + 1. Returns the phase after the backward.
SyncPhase step(const ProcessGroup& world, StepSum& sum,
               const std::vector<size_t>& order) {
  Backward backward(sum);
  const std::vector<PartialSum> earlier;
  sum.begin(earlier);
  for (const size_t p : order) backward.arrive(p, world.rank() + 1);
  std::vector<PartialSum> partials(1);
  partials[0] = {.first = world.rank(),
                 .last = world.rank() + 1,
                 .gradients = backward.rest()};
  sum.end_backward(partials[0].gradients);
  sum.finish();
  const SyncPhase phase = sum.state().phase;
  if (phase == SyncPhase::kOpen) {
    sum.set_schedule(/*came_once=*/!sum.state().repeated);
    sum.sum_after(std::move(partials));
  }
  for (const OwnedGradient& total : sum.take_sums()) {
    TORCH_CHECK(total.tensor().eq(3).all().item<bool>(), total.tensor());
  }
  return phase;
}

TEST(StepSum, SendsInTheBackwardFromTheSecondStepOn) {
  on_two_ranks([](const ProcessGroup& world, StepSum& sum) {
    TORCH_CHECK(step(world, sum, {2, 1, 0}) == SyncPhase::kOpen);
    TORCH_CHECK(sum.schedule() == SendingSchedule::kAsTheyArrive);
    TORCH_CHECK(step(world, sum, {2, 1, 0}) == SyncPhase::kFinished);
    TORCH_CHECK(!sum.state().repeated);
  });
}

TEST(StepSum, FindsAGradientThatComesAgainInTheFirstStep) {
  on_two_ranks([](const ProcessGroup& world, StepSum& sum) {
    Backward backward(sum);
    const std::vector<PartialSum> earlier;
    sum.begin(earlier);
    backward.arrive(1, world.rank() + 0.5);
    backward.arrive(0, world.rank() + 1);
    backward.arrive(1, 0.5);
    TORCH_CHECK(sum.state().repeated == 1U);
    std::vector<PartialSum> partials(1);
    partials[0].gradients = backward.rest();
    sum.end_backward(partials[0].gradients);
    sum.set_schedule(/*came_once=*/false);
    TORCH_CHECK(sum.schedule() == SendingSchedule::kAfterBackward);
    sum.sum_after(std::move(partials));
    TORCH_CHECK(sum.has_gradient(1) && !sum.has_gradient(2));
    TORCH_CHECK(sum.take_sums()[1].tensor().eq(3).all().item<bool>());
  });
}

// A gradient that came last is not sent before the next one comes.
TEST(StepSum, FindsAGradientThatComesAgainAfterItWasSent) {
  on_two_ranks([](const ProcessGroup& world, StepSum& sum) {
    step(world, sum, {2, 1, 0});
    Backward backward(sum);
    const std::vector<PartialSum> earlier;
    sum.begin(earlier);
    backward.arrive(2, 1);
    backward.arrive(2, 1);
    TORCH_CHECK(!sum.state().repeated);
    backward.arrive(1, 1);
    backward.arrive(2, 1);
    TORCH_CHECK(sum.state().repeated == 2U);
    sum.abandon();
    step(world, sum, {0, 1, 2});
  });
}

TEST(Partition, CutsAParameterIntoPiecesOnTheCpuOnly) {
  // A small one, and large ones of 9 and of 5 blocks.
  const std::vector<int64_t> sizes{4, 9 * 16 * 1024, 5 * 16 * 1024};
  std::vector<Tensor> on_host, elsewhere;
  for (const int64_t size : sizes) {
    on_host.push_back(torch::empty({size}));
    elsewhere.push_back(torch::empty({size}, torch::kMeta));
  }
  const auto cuts = cut_parameters(on_host, 2);
  EXPECT_FALSE(cuts[0].is_cut);
  EXPECT_EQ(cuts[1].piece, 4 * 16 * 1024);
  EXPECT_EQ(cuts[1].rest, 16 * 1024);
  EXPECT_EQ(cuts[2].piece, 2 * 16 * 1024);
  EXPECT_EQ(cuts[2].root, 1);
  const auto whole = cut_parameters(elsewhere, 2);
  EXPECT_FALSE(whole[0].is_cut);
  EXPECT_EQ(whole[1].piece, 0);
  EXPECT_EQ(whole[1].rest, sizes[1]);
  EXPECT_EQ(whole[1].root, 0);
  EXPECT_EQ(whole[2].rest, sizes[2]);
  EXPECT_EQ(whole[2].root, 1);
}

TEST(StepReport, IsReadAsItWasWritten) {
  const StepReport::Shape shape{.shards = 3, .partials = 2, .parameters = 4};
  std::vector<std::byte> memory(StepReport::bytes(shape));
  EXPECT_EQ(memory.size() % 64, 0U);
  const StepTotals own{.samples = 12,
                       .shards = {{}, {.loss = 2, .weight = 4}, {}},
                       .needs_grad = true};
  std::vector<PartialSum> partials(1);
  partials[0] = {.first = 1, .last = 2, .gradients = {}};
  const StepReport written(memory.data(), shape);
  written.write(partials, own);
  written.header().repeated = 3;
  written.places(1)[3] = StepReport::kNoGradient;

  const StepReport read(memory.data(), shape);
  EXPECT_EQ(read.header().partials, 1);
  EXPECT_EQ(read.header().repeated, 3);
  EXPECT_EQ(read.ranges()[0].first, 1);
  EXPECT_EQ(read.places(1)[3], StepReport::kNoGradient);
  StepTotals totals{.samples = 12,
                    .shards = {{.loss = 1, .weight = 4}, {}, {}}};
  read.add_to(totals, /*rank=*/0, /*peer=*/1);
  EXPECT_TRUE(totals.needs_grad);
  EXPECT_EQ(totals.shards[0].loss, 1);
  EXPECT_EQ(totals.shards[1].loss, 2);
  EXPECT_EQ(totals.shards[1].weight, 4);
  totals.samples = 13;
  EXPECT_THROW(read.add_to(totals, 0, 1), ParallelError);
}

}  // namespace
}  // namespace lockstep::gradient_sync_test
