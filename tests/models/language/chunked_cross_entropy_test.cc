#include "lockstep/models/language/chunked_cross_entropy.h"

#include <gtest/gtest.h>

#include "lockstep/device/memory.h"
#include "tests/base/error_code_of.h"

namespace lockstep::models {
namespace {

struct Case {
  torch::Tensor hidden, weight, targets;
};

Case make_case(torch::ScalarType type) {
  torch::manual_seed(4);
  return {torch::randn({37, 8}, type).requires_grad_(),
          torch::randn({11, 8}, type).requires_grad_(),
          torch::randint(11, {37}, torch::kInt64)};
}

Case copy_of(const Case& from) {
  return {from.hidden.detach().clone().requires_grad_(),
          from.weight.detach().clone().requires_grad_(), from.targets.clone()};
}

torch::Tensor plain_loss(const Case& data) {
  return torch::nn::functional::cross_entropy(
      torch::mm(data.hidden, data.weight.t()), data.targets);
}

// In float64, where the order of sums is of no account.
TEST(ChunkedCrossEntropy, IsCrossEntropyWhateverTheChunks) {
  for (const int64_t rows : {0, 1, 5, 36, 37, 100}) {
    const Case data = make_case(torch::kFloat64);
    data.targets.slice(0, 3, 6).fill_(-100);
    const Case other = copy_of(data);
    const auto loss =
        chunked_cross_entropy(data.hidden, data.weight, data.targets, rows);
    const auto expected = plain_loss(other);
    EXPECT_NEAR(loss.item<double>(), expected.item<double>(), 1e-12) << rows;
    (loss * 3).backward();
    (expected * 3).backward();
    EXPECT_TRUE(data.hidden.grad().allclose(other.hidden.grad(), 1e-10, 1e-12));
    EXPECT_TRUE(data.weight.grad().allclose(other.weight.grad(), 1e-10, 1e-12));
  }
}

TEST(ChunkedCrossEntropy, NeedsNoGradient) {
  const torch::NoGradGuard no_grad;
  const Case data = make_case(torch::kFloat32);
  EXPECT_NEAR(chunked_cross_entropy(data.hidden, data.weight, data.targets)
                  .item<double>(),
              plain_loss(data).item<double>(), 1e-5);
}

// bf16 has 8 bits: a product of 8 terms is off by some 2^-8.
TEST(ChunkedCrossEntropy, MultipliesInTheTypeOfAutocast) {
  const Case data = make_case(torch::kFloat32);
  const double expected = plain_loss(data).item<double>();
  at::autocast::set_autocast_enabled(at::kCPU, true);
  const auto loss =
      chunked_cross_entropy(data.hidden, data.weight, data.targets);
  at::autocast::set_autocast_enabled(at::kCPU, false);
  EXPECT_EQ(loss.scalar_type(), torch::kFloat32);
  EXPECT_NEAR(loss.item<double>(), expected, 0.02);
  EXPECT_NE(loss.item<double>(), expected);
  loss.backward();
  EXPECT_EQ(data.hidden.grad().scalar_type(), torch::kFloat32);
}

// 512 rows of 20,000 logits are 41 MB; 128 of them, three times, 31 MB.
TEST(ChunkedCrossEntropy, NeverHasTheLogitsOfTheWholeBatch) {
  install_accounting_allocator();
  const auto hidden = torch::randn({512, 16}).requires_grad_();
  const auto weight = torch::randn({20000, 16}).requires_grad_();
  const auto targets = torch::randint(20000, {512}, torch::kInt64);
  const auto peak_of = [&](const auto& loss_of) {
    reset_peak_memory();
    const int64_t before = host_memory_stats().live_bytes;
    loss_of().backward();
    return host_memory_stats().peak_bytes - before;
  };
  const int64_t chunked = peak_of([&] {
    return chunked_cross_entropy(hidden, weight, targets, /*chunk_rows=*/32);
  });
  const int64_t whole = peak_of([&] {
    return plain_loss({hidden, weight, targets});
  });
  const int64_t logits = 512 * 20000 * 4;
  EXPECT_GT(whole, 2 * logits);
  EXPECT_LT(chunked, logits / 3);
}

TEST(ChunkedCrossEntropy, RefusesShapesThatDoNotFit) {
  const Case data = make_case(torch::kFloat32);
  EXPECT_EQ(error_code_of([&] {
              chunked_cross_entropy(data.hidden, data.weight,
                                    data.targets.slice(0, 1));
            }),
            ErrorCode::kBadTensor);
  EXPECT_EQ(error_code_of([&] {
              chunked_cross_entropy(data.hidden.slice(1, 1), data.weight,
                                    data.targets);
            }),
            ErrorCode::kBadTensor);
}

}  // namespace
}  // namespace lockstep::models
