#include "lockstep/base/chunk.h"

#include <gtest/gtest.h>
#include <torch/types.h>

#include "lockstep/base/error.h"

namespace lockstep {
namespace {

using Sizes = std::vector<int64_t>;

TEST(Chunk, SplitsAsThePracticalsTableSays) {
  EXPECT_EQ(chunk_sizes(64, 2), (Sizes{32, 32}));
  EXPECT_EQ(chunk_sizes(64, 3), (Sizes{22, 22, 20}));
  EXPECT_EQ(chunk_sizes(64, 5), (Sizes{13, 13, 13, 13, 12}));
}

TEST(Chunk, GivesFewerChunksThanDevices) {
  EXPECT_EQ(chunk_sizes(5, 4), (Sizes{2, 2, 1}));
  EXPECT_EQ(chunk_sizes(1, 8), (Sizes{1}));
}

TEST(Chunk, AgreesWithTorchChunk) {
  for (int64_t n = 1; n <= 40; ++n) {
    const auto tensor = torch::zeros({n});
    for (int64_t k = 1; k <= 12; ++k) {
      Sizes expected;
      for (const auto& part : tensor.chunk(k)) expected.push_back(part.size(0));
      EXPECT_EQ(chunk_sizes(n, k), expected) << n << " over " << k;
    }
  }
}

TEST(Chunk, RefusesNoDevices) {
  EXPECT_THROW(chunk_sizes(4, 0), InvalidArgument);
  EXPECT_THROW(chunk_sizes(-1, 2), InvalidArgument);
}

TEST(Chunk, GivesEveryShardToOneWorker) {
  for (int64_t workers = 1; workers <= 5; ++workers) {
    for (int64_t shards = workers; shards <= 11; ++shards) {
      int64_t next = 0;
      for (int64_t k = 0; k < workers; ++k) {
        const auto range = shards_of_worker(k, workers, shards);
        EXPECT_EQ(range.first, next);
        EXPECT_GT(range.last, range.first);
        next = range.last;
      }
      EXPECT_EQ(next, shards);
    }
  }
}

}  // namespace
}  // namespace lockstep
