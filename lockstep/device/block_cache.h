#pragma once

#include <array>
#include <atomic>
#include <cstdint>
#include <mutex>

namespace lockstep {

inline constexpr int64_t kBlockAlignment = 64;
inline constexpr int kSizeClasses = 320;

/// Stands before the data of every block, so that a block can be freed by the
/// pointer to its data alone. As long as the alignment of the data.
struct alignas(kBlockAlignment) BlockHeader {
  uint64_t magic;
  int64_t charged_bytes;
  int64_t capacity_bytes;  ///< of the block, header included
  BlockHeader* next;       ///< in a free list
  int16_t size_class;
  int16_t account;
  int16_t slices;
  bool is_donated;  ///< in memory of others, which is not to be unmapped

  void* data() { return this + 1; }
  static BlockHeader* of(void* data) {
    return static_cast<BlockHeader*>(data) - 1;
  }
};
static_assert(sizeof(BlockHeader) == kBlockAlignment);

/// Blocks come in sizes that are multiples of 64 bytes up to 1 KiB, then in
/// eight steps from a power of two to the next: at most 1/8 is wasted.
struct SizeClass {
  int index;
  int64_t capacity_bytes;
};
/// The class of a block of `bytes`, header included; bytes >= 1.
SizeClass size_class_of(int64_t bytes);

/// Takes a block from the system; nullptr when there is none. Its header holds
/// capacity and class, the rest is the caller's to fill in.
BlockHeader* map_block(SizeClass size_class);
void unmap_block(BlockHeader* block);
/// A block in `memory`, which is its to the end of the process.
BlockHeader* place_block(SizeClass size_class, void* memory);

/// Freed blocks, a list per size class. Safe to use from any thread. Has no
/// destructor: tensors are freed until the very end of the process.
class BlockCache {
 public:
  /// nullptr when there is no block of this class.
  BlockHeader* take(int size_class);
  /// Keeps `block`, and returns to the system what then is in excess of
  /// `limit_bytes`: first of the classes that were not used for longest.
  void put(BlockHeader* block, int64_t limit_bytes);
  void release_all();
  int64_t cached_bytes() const {
    return cached_bytes_.load(std::memory_order_relaxed);
  }

 private:
  /// Unlinks blocks until no more than `limit_bytes` are left.
  BlockHeader* evict(int64_t limit_bytes);

  std::mutex mutex_;
  std::array<BlockHeader*, kSizeClasses> free_{};
  std::array<uint64_t, kSizeClasses> last_use_{};
  uint64_t clock_ = 0;
  std::atomic<int64_t> cached_bytes_{0};
};

}  // namespace lockstep
