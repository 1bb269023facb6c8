#pragma once

#include <cstdint>
#include <vector>

namespace lockstep {

/// Returns the sizes of the chunks into which torch.chunk cuts `n` samples.
/// Each has ceil(n / k) samples, except that the last may be smaller, and there
/// may be fewer than k: 64 over 3 gives 22, 22, 20, and 5 over 4 gives 2, 2, 1.
/// No samples (n = 0) give one chunk of 0. Throws InvalidArgument for a
/// negative n or k below 1.
std::vector<int64_t> chunk_sizes(int64_t n, int64_t k);

/// The contiguous range [first, last) of the shards that a worker runs.
struct ShardRange {
  int64_t first;
  int64_t last;
};
/// Returns the range of worker `worker` of `workers`, of `shards` in total. The
/// sizes of the ranges differ by at most one.
ShardRange shards_of_worker(int64_t worker, int64_t workers, int64_t shards);

/// The contiguous range [first, last) of the samples of some shards.
struct SampleRange {
  int64_t first;
  int64_t last;
  int64_t count() const { return last - first; }
};
/// Returns the samples of the shards in `range`, where chunk_sizes() cuts `n`
/// samples into `shards` shards.
SampleRange samples_of(const ShardRange& range, int64_t n, int64_t shards);

/// Returns the number of shards in the left branch of the tree along which
/// `shards` shards are summed: the largest power of two below `shards`, which
/// must be at least 2. The depth of such a tree is minimal. The tree depends
/// only on `shards`, so the bits of a sum do not depend on which worker
/// computed which shard.
int64_t left_branch(int64_t shards);

}  // namespace lockstep
