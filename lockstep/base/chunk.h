#pragma once

#include <cstdint>
#include <vector>

namespace lockstep {

/// How torch.chunk cuts `n` samples for `k` takers: pieces of ceil(n / k), the
/// last one shorter, and fewer than k pieces where they run out: 64 over 3
/// gives 22, 22, 20; 5 over 4 gives 2, 2, 1. Nothing (n = 0) is one piece of 0.
/// Throws InvalidArgument for a negative n or k below 1.
std::vector<int64_t> chunk_sizes(int64_t n, int64_t k);

/// The shards that worker `worker` of `workers` runs, of `shards` in all: the
/// contiguous range [first, last). Blocks differ by one at most.
struct ShardRange {
  int64_t first;
  int64_t last;
};
ShardRange shards_of_worker(int64_t worker, int64_t workers, int64_t shards);

/// The samples of these shards, of `n` that chunk_sizes() cuts for `shards`.
struct SampleRange {
  int64_t first;
  int64_t last;
  int64_t count() const { return last - first; }
};
SampleRange samples_of(const ShardRange& range, int64_t n, int64_t shards);

/// How many of `shards` shards are in the left branch of the tree along which
/// every sum is made: the largest power of two below that number (`shards` is
/// at least 2). It is as balanced as a tree with such branches can be, and a
/// sum's bits do not depend on who computed which shard.
int64_t left_branch(int64_t shards);

}  // namespace lockstep
