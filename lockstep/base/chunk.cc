#include "lockstep/base/chunk.h"

#include <algorithm>
#include <bit>
#include <numeric>

#include <fmt/format.h>

#include "lockstep/base/error.h"

namespace lockstep {

std::vector<int64_t> chunk_sizes(int64_t n, int64_t k) {
  if (n < 0 || k < 1) {
    throw InvalidArgument(
        "parallel", {.code = ErrorCode::kBadBatch,
                     .what = "a batch can't be chunked",
                     .expected = "a size of at least 0 over at least 1 device",
                     .got = fmt::format("{} over {}", n, k)});
  }
  if (n == 0) return {0};
  const int64_t size = (n + k - 1) / k;
  std::vector<int64_t> sizes;
  for (int64_t left = n; left > 0; left -= size) {
    sizes.push_back(std::min(size, left));
  }
  return sizes;
}

ShardRange shards_of_worker(int64_t worker, int64_t workers, int64_t shards) {
  return {worker * shards / workers, (worker + 1) * shards / workers};
}

SampleRange samples_of(const ShardRange& range, int64_t n, int64_t shards) {
  const auto sizes = chunk_sizes(n, shards);
  const auto before = [&](int64_t shard) {
    const auto size = static_cast<int64_t>(sizes.size());
    return std::accumulate(sizes.begin(), sizes.begin() + std::min(shard, size),
                           int64_t{0});
  };
  return {before(range.first), before(range.last)};
}

int64_t left_branch(int64_t shards) {
  return static_cast<int64_t>(
      std::bit_floor(static_cast<uint64_t>(shards - 1)));
}

}  // namespace lockstep
