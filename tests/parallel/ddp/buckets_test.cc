#include "lockstep/parallel/exchange/buckets.h"

#include <gtest/gtest.h>

namespace lockstep::ddp {
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

TEST(MakeBuckets, GivesEachGradientTheLayoutOfItsParameter) {
  std::vector<torch::Tensor> tensors{
      torch::zeros({3, 5}),
      torch::zeros({2, 3, 4, 4}).contiguous(at::MemoryFormat::ChannelsLast)};
  auto buckets = make_buckets(World(), tensors, {{1, 0}});
  ASSERT_EQ(buckets.size(), 1U);
  const GradBucket& grads = buckets[0].grads;
  EXPECT_TRUE(grads.is_last);
  EXPECT_EQ(grads.gradients[0].strides(), tensors[1].strides());
  EXPECT_EQ(grads.gradients[1].sizes(), tensors[0].sizes());
  buckets[0].grads.gradients[0].fill_(1);
  buckets[0].grads.gradients[1].fill_(2);
  EXPECT_EQ(grads.buffer.sum().item<float>(), 96 + 30);
}

}  // namespace
}  // namespace lockstep::ddp
