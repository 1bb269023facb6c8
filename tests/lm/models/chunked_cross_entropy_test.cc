#include <gtest/gtest.h>
#include <torch/nn/functional/loss.h>

#include "lockstep/device/memory.h"
#include "lockstep/lm/models/language_model.h"
#include "tests/base/error_code_of.h"
#include "tests/base/expect_problem.h"

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

// Uses float64, where the order of sums doesn't matter.
TEST(ChunkedCrossEntropy, IsCrossEntropyWhateverTheChunks) {
  for (const int64_t rows : {0, 1, 5, 36, 37, 100}) {
    const Case data = make_case(torch::kFloat64);
    data.targets.slice(0, 3, 6).fill_(-100);
    const Case other = copy_of(data);
    const auto [loss, units] =
        chunked_cross_entropy(data.hidden, data.weight, data.targets, rows);
    EXPECT_EQ(units.item<double>(), 34);
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
                  .loss.item<double>(),
              plain_loss(data).item<double>(), 1e-5);
}

// bf16 has 8 bits, so a product of 8 terms is off by about 2^-8.
TEST(ChunkedCrossEntropy, MultipliesInTheTypeOfAutocast) {
  const Case data = make_case(torch::kFloat32);
  const double expected = plain_loss(data).item<double>();
  at::autocast::set_autocast_enabled(at::kCPU, true);
  const auto loss =
      chunked_cross_entropy(data.hidden, data.weight, data.targets).loss;
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
    return chunked_cross_entropy(hidden, weight, targets, /*chunk_rows=*/32)
        .loss;
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

void expect_nothing(const Case& data) {
  const auto [loss, units] =
      chunked_cross_entropy(data.hidden, data.weight, data.targets, 5);
  EXPECT_EQ(units.item<double>(), 0);
  EXPECT_EQ(loss.item<double>(), 0);
  (loss * 65536).backward();
  for (const auto& leaf : {data.hidden, data.weight}) {
    ASSERT_TRUE(leaf.grad().defined());
    EXPECT_TRUE(leaf.grad().equal(torch::zeros_like(leaf)));
  }
}

TEST(ChunkedCrossEntropy, IsZeroIfNoTargetCounts) {
  const Case data = make_case(torch::kFloat32);
  data.targets.fill_(-100);
  expect_nothing(data);
}

TEST(ChunkedCrossEntropy, OfNoRowsIsZero) {
  Case data = make_case(torch::kFloat32);
  data.hidden = torch::zeros({0, 8}).requires_grad_();
  data.targets = torch::zeros({0}, torch::kInt64);
  expect_nothing(data);
}

// One of the parts is a shard without a target that counts.
TEST(ChunkedCrossEntropy, OfPartsMakesUpThatOfTheBatch) {
  const Case data = make_case(torch::kFloat64);
  data.targets.slice(0, 0, 14).fill_(-100);
  const Case other = copy_of(data);
  auto sum = torch::zeros({}, torch::kFloat64);
  double weight = 0;
  for (int64_t begin = 0; begin < 37; begin += 10) {
    const auto [loss, units] = chunked_cross_entropy(
        data.hidden.slice(0, begin, begin + 10), data.weight,
        data.targets.slice(0, begin, begin + 10));
    sum = sum + loss * units;
    weight += units.item<double>();
  }
  const auto expected = plain_loss(other);
  EXPECT_EQ(weight, 23);
  EXPECT_NEAR((sum / weight).item<double>(), expected.item<double>(), 1e-12);
  (sum / weight).backward();
  expected.backward();
  EXPECT_TRUE(data.hidden.grad().allclose(other.hidden.grad(), 1e-10, 1e-12));
  EXPECT_TRUE(data.weight.grad().allclose(other.weight.grad(), 1e-10, 1e-12));
}

TEST(ChunkedCrossEntropy, RefusesTargetsOutsideOfTheVocabulary) {
  for (const int64_t wrong : {-1, -99, -101, 11, 1 << 20}) {
    const Case data = make_case(torch::kFloat32);
    data.targets.slice(0, 3, 6).fill_(-100);
    data.targets[20] = wrong;
    EXPECT_THROW(plain_loss(data), c10::Error) << wrong;
    const auto act = [&] {
      chunked_cross_entropy(data.hidden, data.weight, data.targets);
    };
    EXPECT_EQ(error_code_of(act), ErrorCode::kBadTensor) << wrong;
    try {
      act();
    } catch (const InvalidArgument& error) {
      expect_problem(error.what(), ErrorCode::kBadTensor,
                     {"row 20", "0 to 10", "-100", std::to_string(wrong)});
    }
    // Follows the advice of the message.
    const auto fixed = data.targets.masked_fill(data.targets == wrong, -100);
    EXPECT_EQ(chunked_cross_entropy(data.hidden, data.weight, fixed)
                  .weight.item<double>(),
              33);
  }
}

}  // namespace
}  // namespace lockstep::models
