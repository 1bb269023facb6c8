#include <gtest/gtest.h>

#include "lockstep/device/memory.h"
#include "lockstep/parallel/exchange/gradient_buckets.h"
#include "tests/parallel/ddp/ranks.h"

namespace lockstep::buckets_test {
namespace {

using Assignment = std::vector<std::vector<size_t>>;

std::vector<torch::Tensor> tensor_with_bytes(
    const std::vector<int64_t>& sizes) {
  std::vector<torch::Tensor> tensors;
  for (const int64_t size : sizes) tensors.push_back(torch::zeros({size / 4}));
  return tensors;
}

TEST(AssignBuckets, ClosesABucketThatHasReachedItsLimit) {
  const auto tensors = tensor_with_bytes({400, 400, 400, 400, 400});
  const std::vector<size_t> order{4, 3, 2, 1, 0};
  EXPECT_EQ(assign_buckets(tensors, order, 400, 800),
            (Assignment{{4}, {3, 2}, {1, 0}}));
  // As in torch, what crosses the limit is still in it.
  EXPECT_EQ(assign_buckets(tensors, order, 500, 900),
            (Assignment{{4, 3}, {2, 1, 0}}));
}

TEST(AssignBuckets, KeepsTypesApartAndOrdersByCompletion) {
  std::vector<torch::Tensor> tensors = tensor_with_bytes({400, 400, 400});
  tensors.push_back(torch::zeros({50}, torch::kDouble));
  tensors.push_back(torch::zeros({50}, torch::kDouble));
  const std::vector<size_t> order{3, 0, 1, 4, 2};
  EXPECT_EQ(assign_buckets(tensors, order, 800, 800),
            (Assignment{{0, 1}, {3, 4}, {2}}));
}

TEST(GradientBuckets, GivesEachGradientTheLayoutOfItsParameter) {
  const std::vector<torch::Tensor> tensors{
      torch::zeros({3, 5}),
      torch::zeros({2, 3, 4, 4}).contiguous(at::MemoryFormat::ChannelsLast)};
  GradientBuckets buckets(ProcessGroup(), tensors, 1 << 20);
  EXPECT_EQ(buckets.assignment(), (Assignment{{1, 0}}));
  EXPECT_EQ(buckets.view(1).strides(), tensors[1].strides());
  EXPECT_EQ(buckets.view(0).sizes(), tensors[0].sizes());
  GradBucket seen;
  buckets.set_hook(
      [&](const ProcessGroup&, GradBucket& bucket) { seen = bucket; });
  buckets.begin(0.5);
  buckets.view(1).fill_(1);
  buckets.mark_ready(1);
  EXPECT_TRUE(seen.gradients.empty());
  buckets.view(0).fill_(2);
  buckets.mark_ready(0);
  buckets.wait();
  EXPECT_TRUE(seen.is_last);
  EXPECT_EQ(seen.weight, 0.5);
  EXPECT_TRUE(seen.gradients[0].is_same(buckets.view(1)));
  EXPECT_EQ(seen.buffer.sum().item<float>(), 96 + 30);
}

TEST(GradientBuckets, SendsBucketsInOrderWhateverIsReadyFirst) {
  const std::vector<torch::Tensor> tensors(4, torch::zeros({300000}));
  GradientBuckets buckets(ProcessGroup(), tensors, 1 << 20);
  const Assignment last_to_first{{3}, {2}, {1}, {0}};
  EXPECT_EQ(buckets.assignment(), last_to_first);
  std::vector<int64_t> sent;
  buckets.set_hook([&](const ProcessGroup&, GradBucket& bucket) {
    sent.push_back(bucket.index);
  });
  buckets.begin(1);
  for (const size_t p : {0, 2, 1}) buckets.mark_ready(p);
  EXPECT_TRUE(sent.empty());
  buckets.mark_ready(3);
  buckets.wait();
  EXPECT_EQ(sent, (std::vector<int64_t>{0, 1, 2, 3}));
  // Parameters that did not arrive come last, in their previous order.
  buckets.rebuild_buckets(0, {0, 2});
  EXPECT_EQ(buckets.assignment(), (Assignment{{0}, {2}, {3}, {1}}));
}

// Each rank is a slice, and its gradients are made in the rank's own memory.
TEST(GradientBuckets, SumWeightedGradientsWhereTheyLie) {
  const auto task = [](ProcessGroup world) {
    const int rank = world.rank();
    const MemoryScope scope({c10::kCPU, rank, 2});
    const std::vector<torch::Tensor> parameters{
        torch::zeros({10}), torch::zeros({400, 300}), torch::zeros({3})};
    GradientBuckets buckets(world, parameters, 25 << 20);
    TORCH_CHECK(buckets.applies_weight());
    const auto gradient = [&](size_t p, int for_rank) -> torch::Tensor {
      const auto n = parameters[p].numel();
      return (torch::arange(n) * 0.7F + for_rank).view(parameters[p].sizes());
    };
    const auto made_by_autograd = [&](const torch::Tensor& value) {
      torch::Tensor leaf = torch::zeros_like(value).requires_grad_();
      (leaf * value).sum().backward();
      return leaf.grad();
    };
    const auto weight = [](int for_rank) { return for_rank == 0 ? 0.3 : 0.7; };
    for (int step = 0; step < 4; ++step) {
      buckets.begin(weight(rank));
      buckets.view(0).copy_(gradient(0, rank));
      buckets.view(2).copy_(gradient(2, rank));
      TORCH_CHECK(!buckets.sum_in_place(0, buckets.view(0)));
      // Memory is given away in the first step, for those that follow. In the
      // last, rank 1 takes the view all the same.
      const torch::Tensor large = made_by_autograd(gradient(1, rank));
      TORCH_CHECK(buckets.sum_in_place(1, large.t()) == false);
      const bool is_in_place =
          step < 3 || rank == 0 ? buckets.sum_in_place(1, large) : false;
      TORCH_CHECK(is_in_place == (step > 0 && (step < 3 || rank == 0)));
      if (!is_in_place) buckets.view(1).copy_(large);
      for (const size_t p : {2, 0, 1}) buckets.mark_ready(p);
      buckets.wait();
      for (const size_t p : {0, 1, 2}) {
        const torch::Tensor expected =
            gradient(p, 0) * weight(0) + gradient(p, 1) * weight(1);
        const bool is_there = p == 1 && is_in_place;
        TORCH_CHECK(torch::equal(is_there ? large : buckets.view(p), expected),
                    "step ", step, " parameter ", p);
      }
    }
  };
  EXPECT_EQ(testing_ddp::failure_of(2, "shm", task), "");
}

}  // namespace
}  // namespace lockstep::buckets_test
