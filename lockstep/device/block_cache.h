#pragma once

#include <array>
#include <atomic>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <mutex>

namespace lockstep {

inline constexpr int64_t kBlockAlignment = 64;
inline constexpr int kSizeClasses = 320;
inline constexpr uint64_t kLiveMagic = 0x4c4f434b53544550;   // "LOCKSTEP"
inline constexpr uint64_t kFreedMagic = 0x6672656564626c6b;  // "freedblk"

/// Memory that a lender has given to a cache (DonatedMemory), divided into
/// blocks. It is held until the lender withdraws it and no tensor uses it any
/// more. Guarded by the mutex of the cache that has the blocks.
struct Donation {
  std::shared_ptr<const void> memory;
  size_t blocks = 0;  ///< free blocks and blocks that tensors use
  bool is_withdrawn = false;
};

/// Header in front of the data of every block, with which a block can be freed
/// given only the pointer to its data. Its size is the alignment of the data.
struct alignas(kBlockAlignment) BlockHeader {
  uint64_t magic;
  int64_t charged_bytes;
  int64_t capacity_bytes;  ///< size of the block, header included
  BlockHeader* next;       ///< next block in a free list
  Donation* donation;  ///< the memory that the block is in; null: the system's
  int16_t size_class;
  int16_t account;
  int16_t slices;

  void* data() { return this + 1; }
  static BlockHeader* of(void* data) {
    return static_cast<BlockHeader*>(data) - 1;
  }
};
static_assert(sizeof(BlockHeader) == kBlockAlignment);

/// Size class of a block. Sizes are multiples of 64 bytes up to 1 KiB, and then
/// eight steps from each power of two to the next, so at most 1/8 is wasted.
struct SizeClass {
  int index;
  int64_t capacity_bytes;
};
/// Returns the class of a block of `bytes`, header included; bytes >= 1.
SizeClass size_class_of(int64_t bytes);
/// Returns the class of a block with room for `bytes` after its header.
SizeClass size_class_for_data(int64_t bytes);

/// Takes a block from the system, or returns nullptr if there is no memory. The
/// capacity and class in its header are set. The caller sets the other fields.
BlockHeader* map_block(SizeClass size_class);
void unmap_block(BlockHeader* block);

/// Freed blocks in two lists per size class: blocks in donated memory, and
/// blocks of the system. May be called from any thread. It has no destructor,
/// because tensors are freed until the very end of the process.
class BlockCache {
 public:
  /// Returns a block of this class, from donated memory if `may_be_donated` and
  /// if there is one. Returns nullptr if there is no block.
  BlockHeader* take(int size_class, bool may_be_donated);
  /// Keeps `block`, and returns blocks beyond `limit_bytes` to the system,
  /// starting with the size classes that have not been used for longest. Blocks
  /// in donated memory don't count, because giving them up would free nothing.
  void put(BlockHeader* block, int64_t limit_bytes);
  /// Returns all blocks that came from the system to it.
  void release_all();
  /// Returns the bytes of all free blocks.
  int64_t cached_bytes() const {
    return cached_bytes_.load(std::memory_order_relaxed) +
           donated_bytes_.load(std::memory_order_relaxed);
  }

  /// Adds a free block in `memory`, which `donation` keeps alive.
  void donate(SizeClass size_class, void* memory, Donation& donation);
  /// Gives the memory back: immediately if no tensor uses it, else when the
  /// last such tensor is freed.
  void withdraw(std::unique_ptr<Donation> donation);

 private:
  using Lists = std::array<BlockHeader*, kSizeClasses>;

  /// Unlinks blocks until at most `limit_bytes` are left.
  BlockHeader* evict(int64_t limit_bytes);
  void put_donated(BlockHeader* block);
  void add_donated(BlockHeader* block);

  std::mutex mutex_;
  Lists free_{};
  Lists donated_{};
  std::array<uint64_t, kSizeClasses> last_use_{};
  uint64_t clock_ = 0;
  std::atomic<int64_t> cached_bytes_{0};   // in free_
  std::atomic<int64_t> donated_bytes_{0};  // in donated_
};

}  // namespace lockstep
