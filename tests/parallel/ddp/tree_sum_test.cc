// A sum of pieces that an all-to-all brings has the bits of the world's own.
#include "lockstep/parallel/exchange/tree_sum.h"

#include <gtest/gtest.h>
#include <torch/types.h>

#include "lockstep/comm/process_group.h"
#include "tests/parallel/ddp/ranks.h"

namespace lockstep::testing_ddp {
namespace {

using torch::Tensor;

// Returns numbers of different magnitudes, so that each order of additions
// gives different bits.
Tensor numbers_of(int rank, int64_t count) {
  const Tensor at = torch::arange(count, torch::kFloat);
  return at.mul(1.7 + rank).sin().mul(at.mul(0.9 * rank + 0.3).cos().exp2());
}

using TreeSums = OnBackends;
INSTANTIATE_TEST_SUITE_P(, TreeSums, testing::Values("shm", "tcp"),
                         [](const auto& info) { return info.param; });

TEST_P(TreeSums, HaveTheSameBitsByPieces) {
  for (const int ranks : {2, 3, 5, 6}) {
    EXPECT_EQ("", on_ranks(ranks, [](ProcessGroup world) {
                for (const int64_t count : {1, 4, 1000, 100'003}) {
                  Tensor by_world = numbers_of(world.rank(), count);
                  Tensor by_pieces = by_world.clone();
                  tree_all_reduce(world, by_world, TreeSum::kByGroup);
                  tree_all_reduce(world, by_pieces, TreeSum::kByPieces);
                  ASSERT_TRUE(torch::equal(by_world, by_pieces)) << count;

                  Tensor at_root = numbers_of(world.rank(), count);
                  Tensor piece_at_root = at_root.clone();
                  const int root = world.size() - 1;
                  tree_reduce(world, at_root, root, TreeSum::kByGroup);
                  tree_reduce(world, piece_at_root, root, TreeSum::kByPieces);
                  if (world.rank() == root) {
                    ASSERT_TRUE(torch::equal(at_root, piece_at_root)) << count;
                  }

                  const auto pieces = [&] {
                    return numbers_of(world.rank(), count * world.size())
                        .chunk(world.size());
                  };
                  const auto rank = static_cast<size_t>(world.rank());
                  const auto scattered = pieces();
                  tree_reduce_scatter(world, scattered[rank], scattered,
                                      TreeSum::kByGroup);
                  const auto exchanged = pieces();
                  tree_reduce_scatter(world, exchanged[rank], exchanged,
                                      TreeSum::kByPieces);
                  ASSERT_TRUE(torch::equal(scattered[rank], exchanged[rank]))
                      << count;
                }
              }));
  }
}

}  // namespace
}  // namespace lockstep::testing_ddp
