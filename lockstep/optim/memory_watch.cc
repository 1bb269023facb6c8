#include "lockstep/optim/memory_watch.h"

#include <algorithm>
#include <bit>
#include <utility>

namespace lockstep::optim {
namespace {

// Returns whether the sums of words can differ because of one flipped bit.
bool differ_by_a_bit(uint64_t a, uint64_t b) {
  return std::has_single_bit(a - b) || std::has_single_bit(b - a);
}

}  // namespace

void MemoryWatch::start(size_t blocks, bool all) {
  seals_.assign(blocks, std::nullopt);
  seals_all_ = all;
  first_ = 0;
  count_ = 0;
  begin_ = {};
  sums_ns_ = 0;
}

void MemoryWatch::begin_step() {
  using std::chrono::nanoseconds;
  const Clock::time_point now = Clock::now();
  const double step =
      std::chrono::duration<double, std::nano>(now - std::exchange(begin_, now))
          .count();
  const auto sums = static_cast<double>(sums_ns_.exchange(0));
  const size_t blocks = seals_.size();
  const size_t fewest = seals_all_ ? blocks : (blocks + kTurns - 1) / kTurns;
  first_ = (first_ + count_) % blocks;
  if (count_ == 0) count_ = fewest;
  // The first step has no earlier one to learn from, and other ranks may update
  // all of these blocks.
  if (sums == 0) return;
  const auto before = static_cast<double>(count_);
  const double wanted = before * kShare * step / sums;
  // Follows slowly, because a step that had to wait says little.
  count_ = std::clamp(
      static_cast<size_t>(std::clamp(wanted, before / 2, 2 * before)), fewest,
      blocks);
}

bool MemoryWatch::unseal(size_t block, Measure measure) {
  if (!seals_[block]) return true;
  const Print sealed = *std::exchange(seals_[block], std::nullopt);
  const Print now = timed(measure);
  int changed_bits = 0;
  for (size_t i = 0; i < now.sample.size(); ++i) {
    changed_bits += std::popcount(now.sample[i] ^ sealed.sample[i]);
  }
  if (changed_bits > 1) return true;
  return now.sum == sealed.sum &&
         !differ_by_a_bit(now.writable_sum, sealed.writable_sum);
}

void MemoryWatch::seal(size_t block, Measure measure) {
  const size_t blocks = seals_.size();
  const size_t place = (block + blocks - first_) % blocks;
  if (place < count_) seals_[block] = timed(measure);
}

MemoryWatch::Print MemoryWatch::timed(Measure measure) {
  const Clock::time_point begin = Clock::now();
  const Print result = measure();
  sums_ns_ += std::chrono::nanoseconds(Clock::now() - begin).count();
  return result;
}

}  // namespace lockstep::optim
