#include "lockstep/tools/measurement/matrix_replay.h"

#include <gtest/gtest.h>
#include <torch/torch.h>

namespace lockstep {
namespace {

template <class F>
std::vector<MatrixCall> calls_of(const F& work) {
  OperatorRecording recording;
  work();
  return recording.take().matrix_calls;
}

TEST(MatrixReplay, CountsTheProductsOfALayer) {
  torch::nn::Linear linear(5, 4);
  const auto x = torch::ones({2, 5}, torch::requires_grad());
  const auto calls = calls_of([&] { linear->forward(x).sum().backward(); });
  const MatrixWork work = MatrixReplay(calls).count();
  // (2 x 5)(5 x 4), and backward (4 x 2)(2 x 5) and (2 x 4)(4 x 5).
  EXPECT_EQ(work.calls, 3);
  EXPECT_EQ(work.flops, 3 * 2 * 2 * 5 * 4);
  // The forward reads input, weight and bias and writes the output; the
  // gradient of the output is one number, expanded.
  const double forward = 10 + 20 + 4 + 8;
  const double backward = (1 + 10 + 20) + (1 + 20 + 10);
  EXPECT_EQ(work.bytes, 4 * (forward + backward));
}

TEST(MatrixReplay, CountsConvolutionsWithTheirGroups) {
  const auto options = torch::nn::Conv2dOptions(4, 6, 3).stride(2).groups(2);
  torch::nn::Conv2d conv(options);
  const auto x = torch::ones({2, 4, 7, 9}, torch::requires_grad());
  const auto calls = calls_of([&] { conv->forward(x).sum().backward(); });
  const MatrixWork work = MatrixReplay(calls).count();
  EXPECT_EQ(work.calls, 2);
  // 2 x 6 x 3 x 4 outputs, each of 2 x 3 x 3 products; the backward has one
  // such convolution for the input and one for the weight.
  EXPECT_EQ(work.flops, 3 * 2 * (2 * 6 * 3 * 4) * (2 * 3 * 3));
}

TEST(MatrixReplay, CountsTransposedConvolutions) {
  torch::nn::ConvTranspose2d conv(torch::nn::ConvTranspose2dOptions(4, 6, 3));
  const auto x = torch::ones({2, 4, 5, 5}, torch::requires_grad());
  const auto calls = calls_of([&] { conv->forward(x).sum().backward(); });
  const MatrixWork work = MatrixReplay(calls).count();
  EXPECT_EQ(work.flops, 3 * 2 * (2 * 4 * 5 * 5) * (6 * 3 * 3));
}

TEST(MatrixReplay, CountsAttention) {
  const auto make = [] {
    return torch::ones({1, 2, 8, 4}, torch::requires_grad());
  };
  const auto q = make(), k = make(), v = make();
  const auto calls = calls_of(
      [&] { at::scaled_dot_product_attention(q, k, v).sum().backward(); });
  const MatrixWork work = MatrixReplay(calls).count();
  const double product = 2 * 2 * 8 * 8 * 4;
  // Two products forward, and five backward if it is fused; four otherwise.
  const bool is_fused = calls.size() == 2;
  EXPECT_EQ(work.flops, (is_fused ? 7 : 6) * product) << calls.size();
}

TEST(MatrixReplay, KeepsLayoutsAndSharedStorages) {
  const auto base = torch::ones({6, 4}, torch::kBFloat16);
  const auto column = torch::ones({4, 1}, torch::kBFloat16);
  const auto calls = calls_of([&] {
    torch::mm(base.narrow(0, 2, 4).t(), base.narrow(0, 2, 4));
    torch::mm(base, column.expand({4, 3}));
  });
  ASSERT_EQ(calls.size(), 2u);
  const MatrixReplay replay(calls);
  // The base once, and four numbers of the expanded operand.
  EXPECT_EQ(replay.storage_bytes(), 2 * (24 + 4));
  OperatorRecording recording;
  replay.run();
  const auto again = recording.take().matrix_calls;
  ASSERT_EQ(again.size(), 2u);
  for (size_t i = 0; i < again.size(); ++i) {
    EXPECT_EQ(again[i].name, calls[i].name);
    ASSERT_EQ(again[i].tensors.size(), calls[i].tensors.size());
    for (size_t t = 0; t < calls[i].tensors.size(); ++t) {
      const TensorLayout& before = calls[i].tensors[t].second;
      const TensorLayout& after = again[i].tensors[t].second;
      EXPECT_EQ(after.sizes, before.sizes);
      EXPECT_EQ(after.strides, before.strides);
      EXPECT_EQ(after.offset, before.offset);
      EXPECT_EQ(after.type, before.type);
      EXPECT_NE(after.storage, before.storage);
    }
  }
  EXPECT_EQ(again[0].tensors[0].second.storage,
            again[1].tensors[0].second.storage);
}

}  // namespace
}  // namespace lockstep
