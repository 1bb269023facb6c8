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

/// Memory that somebody lent to a cache (DonatedMemory), cut into blocks. It is
/// held until the lender wants it back and no tensor lies in it any more.
/// Guarded by the cache that has the blocks.
struct Donation {
  std::shared_ptr<const void> memory;
  size_t blocks = 0;  ///< free ones and those that tensors lie in
  bool is_withdrawn = false;
};

/// Stands before the data of every block, so that a block can be freed by the
/// pointer to its data alone. As long as the alignment of the data.
struct alignas(kBlockAlignment) BlockHeader {
  uint64_t magic;
  int64_t charged_bytes;
  int64_t capacity_bytes;  ///< of the block, header included
  BlockHeader* next;       ///< in a free list
  Donation* donation;      ///< whose memory it is in; null: the system's
  int16_t size_class;
  int16_t account;
  int16_t slices;

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
/// The class of a block that has room for `bytes` behind its header.
SizeClass size_class_for_data(int64_t bytes);

/// Takes a block from the system; nullptr when there is none. Its header holds
/// capacity and class, the rest is the caller's to fill in.
BlockHeader* map_block(SizeClass size_class);
void unmap_block(BlockHeader* block);

/// Freed blocks, two lists per size class: those in donated memory and those of
/// the system. Safe to use from any thread. Has no destructor: tensors are
/// freed until the very end of the process.
class BlockCache {
 public:
  /// A block of this class, in donated memory if `may_be_donated` and if there
  /// is one; nullptr when there is no block.
  BlockHeader* take(int size_class, bool may_be_donated);
  /// Keeps `block`, and returns to the system what then is in excess of
  /// `limit_bytes`: first of the classes that were not used for longest. Blocks
  /// in donated memory don't count there: to give them up would free nothing.
  void put(BlockHeader* block, int64_t limit_bytes);
  /// Returns to the system all blocks that are the system's.
  void release_all();
  /// Of all free blocks.
  int64_t cached_bytes() const {
    return cached_bytes_.load(std::memory_order_relaxed) +
           donated_bytes_.load(std::memory_order_relaxed);
  }

  /// Makes a free block in `memory`, which `donation` holds.
  void donate(SizeClass size_class, void* memory, Donation& donation);
  /// Gives the memory back: now, if no tensor lies in it, or else with the last
  /// such tensor.
  void withdraw(std::unique_ptr<Donation> donation);

 private:
  using Lists = std::array<BlockHeader*, kSizeClasses>;

  /// Unlinks blocks until no more than `limit_bytes` are left.
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
