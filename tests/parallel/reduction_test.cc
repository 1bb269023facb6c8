#include "lockstep/parallel/reduction/reduction.h"

#include <bit>
#include <cmath>

#include <gtest/gtest.h>

#include "lockstep/base/chunk.h"

namespace lockstep {
namespace {

using torch::Tensor;

/// The partial sum of shards [first, last); an undefined tensor is no gradient.
PartialSum partial_of(int64_t first, int64_t last,
                      std::vector<Tensor> gradients) {
  PartialSum partial{.first = first, .last = last, .gradients = {}};
  for (Tensor& gradient : gradients) {
    partial.gradients.push_back(OwnedGradient::in(std::move(gradient)));
  }
  return partial;
}

/// The tree as its definition reads: the oracle.
float tree_sum(const std::vector<float>& values, size_t first, size_t last) {
  if (last - first == 1) return values[first];
  const size_t middle = first + std::bit_floor(last - first - 1);
  return tree_sum(values, first, middle) + tree_sum(values, middle, last);
}

/// Values whose sum depends on the order.
std::vector<float> values_of(int64_t shards) {
  std::vector<float> values;
  for (int64_t s = 0; s < shards; ++s) {
    values.push_back(std::sin(static_cast<float>(s + 1)) *
                     (s % 3 == 0 ? 1e4f : 1.0f));
  }
  return values;
}

float reduce_with(int64_t workers, int64_t shards, bool in_place) {
  const auto values = values_of(shards);
  const std::vector<Tensor> parameters{torch::zeros({40000})};
  std::vector<PartialSum> all;
  for (int64_t k = 0; k < workers; ++k) {
    std::vector<PartialSum> own;
    const auto range = shards_of_worker(k, workers, shards);
    for (int64_t s = range.first; s < range.last; ++s) {
      append_partial(
          own,
          partial_of(s, s + 1,
                     {torch::full({40000}, values[static_cast<size_t>(s)])}),
          shards);
    }
    std::move(own.begin(), own.end(), std::back_inserter(all));
  }
  Reduction reduction(std::move(all), shards, parameters);
  Tensor result = torch::empty({40000});
  const auto blocks = optim::cut_into_blocks(parameters);
  for (const auto& block : blocks) {
    Tensor scratch;
    if (!in_place) scratch = torch::empty({optim::kBlockElements});
    const Tensor sum = reduction.block(block, scratch);
    result.narrow(0, block.offset, block.length).copy_(sum);
  }
  if (in_place) result = reduction.take()[0];
  EXPECT_TRUE(result.eq(result[0]).all().item<bool>());
  return result[0].item<float>();
}

TEST(Reduction, FollowsOneTreeWhateverRunsTheShards) {
  for (int64_t shards = 1; shards <= 17; ++shards) {
    const auto values = values_of(shards);
    const float expected = tree_sum(values, 0, values.size());
    for (int64_t workers = 1; workers <= shards; ++workers) {
      EXPECT_EQ(reduce_with(workers, shards, false), expected)
          << shards << " shards on " << workers;
      EXPECT_EQ(reduce_with(workers, shards, true), expected)
          << shards << " shards on " << workers << ", in place";
    }
  }
}

TEST(Reduction, DependsOnTheTree) {
  // Else the test above could not fail.
  int differing = 0;
  for (int64_t shards = 3; shards <= 17; ++shards) {
    const auto values = values_of(shards);
    float in_order = 0;
    for (const float value : values) in_order += value;
    differing += tree_sum(values, 0, values.size()) != in_order;
  }
  EXPECT_GT(differing, 0);
}

// Ranks without a shard send -0.0.
TEST(Reduction, OfTheFirstShardsIsThatOfAllWithNegativeZeros) {
  // Sums of three of these depend on their order, and zeros have both signs.
  const std::vector<float> values{1e8f, -0.0f, 0.0f, -1e8f, 1.0f, -0.0f, -1.0f};
  const auto sum_of = [](std::vector<Tensor> shards) {
    std::vector<OwnedGradient> gradients;
    for (Tensor& shard : shards) {
      gradients.push_back(OwnedGradient::in(std::move(shard)));
    }
    return sum_over_shards(std::move(gradients)).release();
  };
  for (int64_t shards = 1; shards <= 20; ++shards) {
    for (int64_t filled = 1; filled <= shards; ++filled) {
      std::vector<Tensor> some, all;
      for (int64_t s = 0; s < shards; ++s) {
        // Each element has another order of the values.
        Tensor shard = torch::full({int64_t{49}}, -0.0f);
        for (int64_t i = 0; i < 49 && s < filled; ++i) {
          shard[i] = values[static_cast<size_t>((s * (i / 7 + 1) + i) % 7)];
        }
        if (s < filled) some.push_back(shard.clone());
        all.push_back(shard);
      }
      EXPECT_TRUE(torch::equal(sum_of(std::move(some)).view(torch::kInt),
                               sum_of(std::move(all)).view(torch::kInt)))
          << filled << " of " << shards << " shards";
    }
  }
}

TEST(Reduction, HoldsFewPartialSums) {
  std::vector<PartialSum> partials;
  size_t most = 0;
  for (int64_t s = 0; s < 64; ++s) {
    append_partial(partials, partial_of(s, s + 1, {torch::ones({2})}), 64);
    most = std::max(most, partials.size());
  }
  EXPECT_EQ(partials.size(), 1u);
  EXPECT_LE(most, 6u);
}

TEST(Reduction, SkipsShardsWithoutAGradient) {
  const std::vector<Tensor> parameters{torch::zeros({3}), torch::zeros({3}),
                                       torch::zeros({3})};
  std::vector<PartialSum> partials;
  partials.push_back(partial_of(0, 1, {Tensor(), torch::ones({3}), Tensor()}));
  partials.push_back(partial_of(1, 2, {torch::ones({3}), Tensor(), Tensor()}));
  partials.push_back(
      partial_of(2, 3, {torch::ones({3}), torch::ones({3}), Tensor()}));
  Reduction reduction(std::move(partials), 3, parameters);
  EXPECT_TRUE(reduction.has_gradient(0));
  EXPECT_TRUE(reduction.has_gradient(1));
  EXPECT_FALSE(reduction.has_gradient(2));
  for (const auto& block : optim::cut_into_blocks(parameters)) {
    Tensor in_place;
    reduction.block(block, in_place);
  }
  const auto sums = reduction.take();
  EXPECT_TRUE(sums[0].equal(torch::full({3}, 2.0f)));
  EXPECT_TRUE(sums[1].equal(torch::full({3}, 2.0f)));
  EXPECT_FALSE(sums[2].defined());
}

// Blocks of gradients and parameters are read from memory side by side.
TEST(OwnedGradient, LiesInMemoryLikeItsParameter) {
  const Tensor values = torch::arange(12.0f).view({3, 4});
  const Tensor parameter = torch::zeros({3, 4});
  const auto as_columns = [&] { return values.t().contiguous().t(); };
  const OwnedGradient gradient = OwnedGradient::take(as_columns(), parameter);
  EXPECT_TRUE(gradient.tensor().is_contiguous());
  EXPECT_TRUE(gradient.tensor().equal(values));
  const OwnedGradient column_gradient =
      OwnedGradient::take(values.clone(), as_columns());
  EXPECT_EQ(column_gradient.tensor().strides(), as_columns().strides());
  EXPECT_TRUE(column_gradient.tensor().equal(values));
}

}  // namespace
}  // namespace lockstep
