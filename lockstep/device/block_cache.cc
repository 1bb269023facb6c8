#include "lockstep/device/block_cache.h"

#include <bit>
#include <cstdlib>
#include <new>
#include <sys/mman.h>
#include <utility>

#include "lockstep/base/round_up.h"

namespace lockstep {
namespace {

constexpr int64_t kFineBytes = 1024;
constexpr int kFineClasses = kFineBytes / kBlockAlignment;
constexpr int kSteps = 8;
constexpr int kFineLog2 = 10;
// Blocks of this size and more are separate mappings. The heap of the C library
// could not return them before everything above them is freed.
constexpr int64_t kMappedBytes = int64_t{1} << 20;

void unmap_list(BlockHeader* block) {
  while (block != nullptr) unmap_block(std::exchange(block, block->next));
}

BlockHeader* make_header(SizeClass size_class, void* memory,
                         Donation* donation) {
  return new (memory)
      BlockHeader{.magic = 0,
                  .charged_bytes = 0,
                  .capacity_bytes = size_class.capacity_bytes,
                  .next = nullptr,
                  .donation = donation,
                  .size_class = static_cast<int16_t>(size_class.index),
                  .account = 0,
                  .slices = 0};
}

}  // namespace

SizeClass size_class_of(int64_t bytes) {
  if (bytes <= kFineBytes) {
    const int units = static_cast<int>((bytes - 1) / kBlockAlignment) + 1;
    return {units - 1, units * kBlockAlignment};
  }
  const int log2 = std::bit_width(static_cast<uint64_t>(bytes - 1)) - 1;
  const int64_t base = int64_t{1} << log2;
  const int64_t step = base / kSteps;
  const int steps = static_cast<int>((bytes - base + step - 1) / step);
  return {kFineClasses + (log2 - kFineLog2) * kSteps + steps - 1,
          base + steps * step};
}

SizeClass size_class_for_data(int64_t bytes) {
  return size_class_of(round_up<int64_t>(bytes, kBlockAlignment) +
                       static_cast<int64_t>(sizeof(BlockHeader)));
}

BlockHeader* map_block(SizeClass size_class) {
  const auto capacity = static_cast<size_t>(size_class.capacity_bytes);
  void* memory = nullptr;
  if (size_class.capacity_bytes < kMappedBytes) {
    memory = std::aligned_alloc(kBlockAlignment, capacity);
    if (memory == nullptr) return nullptr;
  } else {
    memory = mmap(nullptr, capacity, PROT_READ | PROT_WRITE,
                  MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    if (memory == MAP_FAILED) return nullptr;
  }
  return make_header(size_class, memory, /*donation=*/nullptr);
}

void unmap_block(BlockHeader* block) {
  if (block->capacity_bytes < kMappedBytes) {
    std::free(block);
  } else {
    munmap(block, static_cast<size_t>(block->capacity_bytes));
  }
}

BlockHeader* BlockCache::take(int size_class, bool may_be_donated) {
  const auto index = static_cast<size_t>(size_class);
  const std::lock_guard lock(mutex_);
  BlockHeader* block = may_be_donated ? donated_[index] : nullptr;
  if (block != nullptr) {
    donated_[index] = block->next;
    donated_bytes_.fetch_sub(block->capacity_bytes, std::memory_order_relaxed);
    return block;
  }
  last_use_[index] = ++clock_;
  block = free_[index];
  if (block == nullptr) return nullptr;
  free_[index] = block->next;
  cached_bytes_.fetch_sub(block->capacity_bytes, std::memory_order_relaxed);
  return block;
}

void BlockCache::put(BlockHeader* block, int64_t limit_bytes) {
  if (block->donation != nullptr) return put_donated(block);
  BlockHeader* excess = nullptr;
  {
    const std::lock_guard lock(mutex_);
    const auto index = static_cast<size_t>(block->size_class);
    block->next = free_[index];
    free_[index] = block;
    last_use_[index] = ++clock_;
    cached_bytes_.fetch_add(block->capacity_bytes, std::memory_order_relaxed);
    if (cached_bytes_ > limit_bytes) excess = evict(limit_bytes);
  }
  unmap_list(excess);
}

void BlockCache::put_donated(BlockHeader* block) {
  // Destroyed without the lock, because unmapping memory takes long.
  std::unique_ptr<Donation> done;
  const std::lock_guard lock(mutex_);
  Donation* const donation = block->donation;
  if (donation->is_withdrawn) {
    if (--donation->blocks == 0) done.reset(donation);
    return;
  }
  add_donated(block);
}

void BlockCache::add_donated(BlockHeader* block) {
  const auto index = static_cast<size_t>(block->size_class);
  block->next = std::exchange(donated_[index], block);
  donated_bytes_.fetch_add(block->capacity_bytes, std::memory_order_relaxed);
}

void BlockCache::donate(SizeClass size_class, void* memory,
                        Donation& donation) {
  BlockHeader* const block = make_header(size_class, memory, &donation);
  block->magic = kFreedMagic;
  const std::lock_guard lock(mutex_);
  ++donation.blocks;
  add_donated(block);
}

void BlockCache::withdraw(std::unique_ptr<Donation> donation) {
  const std::lock_guard lock(mutex_);
  donation->is_withdrawn = true;
  for (BlockHeader*& list : donated_) {
    BlockHeader** link = &list;
    while (BlockHeader* const block = *link) {
      if (block->donation != donation.get()) {
        link = &block->next;
        continue;
      }
      *link = block->next;
      --donation->blocks;
      donated_bytes_.fetch_sub(block->capacity_bytes,
                               std::memory_order_relaxed);
    }
  }
  // The last tensor in the memory deletes the donation.
  if (donation->blocks > 0) (void)donation.release();
}

void BlockCache::release_all() {
  BlockHeader* excess = nullptr;
  {
    const std::lock_guard lock(mutex_);
    excess = evict(0);
  }
  unmap_list(excess);
}

BlockHeader* BlockCache::evict(int64_t limit_bytes) {
  BlockHeader* evicted = nullptr;
  while (cached_bytes_ > limit_bytes) {
    size_t oldest = free_.size();
    for (size_t i = 0; i < free_.size(); ++i) {
      const bool is_older =
          oldest == free_.size() || last_use_[i] < last_use_[oldest];
      if (free_[i] != nullptr && is_older) oldest = i;
    }
    if (oldest == free_.size()) break;
    while (free_[oldest] != nullptr && cached_bytes_ > limit_bytes) {
      BlockHeader* block = std::exchange(free_[oldest], free_[oldest]->next);
      cached_bytes_.fetch_sub(block->capacity_bytes, std::memory_order_relaxed);
      block->next = std::exchange(evicted, block);
    }
  }
  return evicted;
}

}  // namespace lockstep
