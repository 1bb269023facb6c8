#include <gtest/gtest.h>

#include "lockstep/parallel/exchange/gradient_buckets.h"

namespace lockstep {
namespace {

using Assignment = std::vector<std::vector<size_t>>;

std::vector<torch::Tensor> of_bytes(const std::vector<int64_t>& sizes) {
  std::vector<torch::Tensor> tensors;
  for (const int64_t size : sizes) tensors.push_back(torch::zeros({size / 4}));
  return tensors;
}

TEST(AssignBuckets, ClosesABucketThatHasReachedItsLimit) {
  const auto tensors = of_bytes({400, 400, 400, 400, 400});
  const std::vector<size_t> order{4, 3, 2, 1, 0};
  EXPECT_EQ(assign_buckets(tensors, order, 400, 800),
            (Assignment{{4}, {3, 2}, {1, 0}}));
  // As in torch, what crosses the limit is still in it.
  EXPECT_EQ(assign_buckets(tensors, order, 500, 900),
            (Assignment{{4, 3}, {2, 1, 0}}));
}

TEST(AssignBuckets, KeepsTypesApartAndOrdersByCompletion) {
  std::vector<torch::Tensor> tensors = of_bytes({400, 400, 400});
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
  GradientBuckets buckets(World(), tensors, 1 << 20);
  EXPECT_EQ(buckets.assignment(), (Assignment{{1, 0}}));
  EXPECT_EQ(buckets.view(1).strides(), tensors[1].strides());
  EXPECT_EQ(buckets.view(0).sizes(), tensors[0].sizes());
  GradBucket seen;
  buckets.set_hook([&](const World&, GradBucket& bucket) { seen = bucket; });
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
  GradientBuckets buckets(World(), tensors, 1 << 20);
  const Assignment last_to_first{{3}, {2}, {1}, {0}};
  EXPECT_EQ(buckets.assignment(), last_to_first);
  std::vector<int64_t> sent;
  buckets.set_hook(
      [&](const World&, GradBucket& bucket) { sent.push_back(bucket.index); });
  buckets.begin(1);
  for (const size_t p : {0, 2, 1}) buckets.mark_ready(p);
  EXPECT_TRUE(sent.empty());
  buckets.mark_ready(3);
  buckets.wait();
  EXPECT_EQ(sent, (std::vector<int64_t>{0, 1, 2, 3}));
  // What did not come stays behind, in the order it has.
  buckets.rebuild_buckets(0, {0, 2});
  EXPECT_EQ(buckets.assignment(), (Assignment{{0}, {2}, {3}, {1}}));
}

}  // namespace
}  // namespace lockstep
