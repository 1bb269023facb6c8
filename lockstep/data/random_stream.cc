#include "lockstep/data/random_stream.h"

#include <cstddef>
#include <numeric>
#include <utility>

namespace lockstep::data {

std::vector<int64_t> shuffled_order(int64_t size, uint64_t seed,
                                    int64_t epoch) {
  std::vector<int64_t> order(static_cast<std::size_t>(size));
  std::iota(order.begin(), order.end(), int64_t{0});
  RandomStream random(StreamUse::kOrder, {seed, static_cast<uint64_t>(epoch)});
  for (int64_t left = size; left > 1; --left) {
    const int64_t taken = random.below(left);
    std::swap(order[static_cast<std::size_t>(left - 1)],
              order[static_cast<std::size_t>(taken)]);
  }
  return order;
}

}  // namespace lockstep::data
