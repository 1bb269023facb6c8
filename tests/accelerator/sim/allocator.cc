#include "tests/accelerator/sim/allocator.h"

#include <algorithm>
#include <array>
#include <cstring>
#include <map>
#include <memory>
#include <mutex>
#include <utility>
#include <vector>

#include "tests/accelerator/sim/accelerator.h"
#include "tests/accelerator/sim/faults.h"
#include "tests/accelerator/sim/memory.h"
#include "tests/accelerator/sim/stream.h"

namespace lockstep::sim {
namespace {

constexpr size_t kBlockBytes = 512;  // blocks are multiples of it
constexpr int kNaN = 0xff;           // bytes of a NaN in each type of numbers

struct Block {
  std::byte* address;
  size_t bytes;
  size_t used_bytes;                     // of its allocation
  c10::Stream stream;                    // that it was allocated on
  std::vector<c10::Stream> other_users;  // of record_stream()
};
using BlockPtr = std::unique_ptr<Block>;

/// A freed block that other streams still use.
struct Leaving {
  BlockPtr block;
  std::vector<std::shared_ptr<Event::Point>> ends;

  bool is_unused() const {
    return std::all_of(ends.begin(), ends.end(),
                       [](const auto& end) { return Event::is_reached(*end); });
  }
};

void fill_with_nan(const Block& block) {
  thread_of(block.stream)
      .enqueue([at = DeviceMemory::get().for_kernel(block.address),
                bytes = block.bytes] { std::memset(at, kNaN, bytes); });
}

struct Device {
  std::mutex mutex;
  size_t carved = 0;                                // bytes of its space
  std::map<int64_t, std::vector<BlockPtr>> unused;  // by stream
  std::vector<Leaving> leaving;
  size_t unused_bytes = 0;
  MemoryUse use;
};

class Allocator final : public c10::DeviceAllocator {
 public:
  c10::DataPtr allocate(size_t bytes) override {
    const int index = current_device();
    const c10::Device device(kSim, static_cast<c10::DeviceIndex>(index));
    if (bytes == 0) return {nullptr, nullptr, &release, device};
    Block* const block = take(index, bytes).release();
    fill_with_nan(*block);
    return {block->address, block, &release, device};
  }

  c10::DeleterFnPtr raw_deleter() const override { return nullptr; }

  void copy_data(void* destination, const void* source,
                 size_t bytes) const override {
    const auto& memory = DeviceMemory::get();
    thread_of(current_stream())
        .enqueue([to = memory.for_kernel(destination),
                  from = memory.for_kernel(source),
                  bytes] { std::memcpy(to, from, bytes); });
  }

  bool initialized() override { return true; }

  void emptyCache(c10::MempoolId_t /*pool*/) override {
    for (int i = 0; i < installed().devices; ++i) {
      drain_device(i);
      const std::lock_guard lock(of(i).mutex);
      discard_unused(of(i));
    }
  }

  void recordStream(const c10::DataPtr& data, c10::Stream stream) override {
    if (data.get_deleter() != &release) return;  // of another allocator
    auto* const block = static_cast<Block*>(data.get_context());
    if (block == nullptr || block->stream == stream) return;
    const std::lock_guard lock(of(block->stream.device_index()).mutex);
    block->other_users.push_back(stream);
  }

  c10::CachingDeviceAllocator::DeviceStats getDeviceStats(
      c10::DeviceIndex index) override {
    const std::lock_guard lock(of(index).mutex);
    constexpr auto kAll =
        static_cast<size_t>(c10::CachingAllocator::StatType::AGGREGATE);
    c10::CachingDeviceAllocator::DeviceStats stats;
    stats.allocated_bytes[kAll].current = of(index).use.bytes;
    stats.allocated_bytes[kAll].peak = of(index).use.peak_bytes;
    stats.reserved_bytes[kAll].current =
        of(index).use.bytes + static_cast<int64_t>(of(index).unused_bytes);
    return stats;
  }
  std::pair<size_t, size_t> getMemoryInfo(c10::DeviceIndex index) override {
    const std::lock_guard lock(of(index).mutex);
    const auto all = static_cast<size_t>(installed().memory_bytes);
    return {all - static_cast<size_t>(of(index).use.bytes), all};
  }
  void resetAccumulatedStats(c10::DeviceIndex /*index*/) override {}
  void resetPeakStats(c10::DeviceIndex index) override {
    const std::lock_guard lock(of(index).mutex);
    of(index).use.peak_bytes = of(index).use.bytes;
  }

  MemoryUse use(int index) {
    const std::lock_guard lock(of(index).mutex);
    return of(index).use;
  }

 private:
  Device& of(int index) { return devices_.at(static_cast<size_t>(index)); }

  BlockPtr take(int index, size_t bytes) {
    bytes = (bytes + kBlockBytes - 1) / kBlockBytes * kBlockBytes;
    Device& device = of(index);
    const c10::Stream stream = current_stream(index);
    const bool fails = take_failing_allocation();
    const std::lock_guard lock(device.mutex);
    collect(device);
    BlockPtr block = fails ? nullptr : reuse(device, stream, bytes);
    if (block == nullptr && !fails) block = carve(index, stream, bytes);
    TORCH_CHECK_WITH(OutOfMemoryError, block != nullptr, "sim:", index,
                     " is out of memory: tried to allocate ", bytes, " bytes, ",
                     device.use.bytes, " of ", installed().memory_bytes,
                     " are in use");
    block->used_bytes = bytes;
    device.use.bytes += static_cast<int64_t>(bytes);
    device.use.peak_bytes = std::max(device.use.peak_bytes, device.use.bytes);
    return block;
  }

  /// Returns the block freed last that is large enough, and not over twice as
  /// large.
  static BlockPtr reuse(Device& device, const c10::Stream& stream,
                        size_t bytes) {
    auto& list = device.unused[stream.id()];
    const auto found =
        std::find_if(list.rbegin(), list.rend(), [&](const BlockPtr& block) {
          return block->bytes >= bytes && block->bytes <= 2 * bytes;
        });
    if (found == list.rend()) return nullptr;
    BlockPtr block = std::move(*found);
    list.erase(std::next(found).base());
    device.unused_bytes -= block->bytes;
    return block;
  }

  BlockPtr carve(int index, const c10::Stream& stream, size_t bytes) {
    Device& device = of(index);
    const auto is_full = [&] {
      return static_cast<size_t>(device.use.bytes) + device.unused_bytes +
                 bytes >
             static_cast<size_t>(installed().memory_bytes);
    };
    if (is_full()) discard_unused(device);
    if (is_full() || device.carved + bytes > kSpaceBytes) return nullptr;
    std::byte* const address = DeviceMemory::get().space(index) + device.carved;
    device.carved += bytes;
    return std::make_unique<Block>(Block{address, bytes, bytes, stream, {}});
  }

  /// Gives unused memory back to the system, after the kernels that fill it.
  static void discard_unused(Device& device) {
    for (auto& [stream, list] : device.unused) {
      if (!list.empty()) thread_of(list.front()->stream).drain();
      for (const BlockPtr& block : list) {
        DeviceMemory::get().discard(block->address, block->bytes);
      }
      list.clear();
    }
    device.unused_bytes = 0;
  }

  /// Makes the blocks that no other stream uses any more available.
  static void collect(Device& device) {
    for (Leaving& leaving : device.leaving) {
      if (leaving.is_unused()) make_unused(device, std::move(leaving.block));
    }
    std::erase_if(device.leaving, [](const Leaving& leaving) {
      return leaving.block == nullptr;
    });
  }

  static void make_unused(Device& device, BlockPtr block) {
    fill_with_nan(*block);
    device.unused_bytes += block->bytes;
    block->other_users.clear();
    device.unused[block->stream.id()].push_back(std::move(block));
  }

  static void release(void* context) {
    if (context == nullptr) return;
    BlockPtr block(static_cast<Block*>(context));
    auto& all = static_cast<Allocator&>(allocator());
    Device& device = all.of(block->stream.device_index());
    const std::lock_guard lock(device.mutex);
    device.use.bytes -= static_cast<int64_t>(block->used_bytes);
    Leaving leaving{.block = nullptr, .ends = {}};
    for (const c10::Stream& user : block->other_users) {
      Event event;
      auto end = event.renew();
      thread_of(user).enqueue([end] { Event::mark(*end); });
      leaving.ends.push_back(std::move(end));
    }
    if (leaving.ends.empty()) {
      make_unused(device, std::move(block));
    } else {
      leaving.block = std::move(block);
      device.leaving.push_back(std::move(leaving));
    }
  }

  std::array<Device, kMaxDevices> devices_;
};

}  // namespace

c10::DeviceAllocator& allocator() {
  static auto* const one = new Allocator();  // tensors outlive statics
  return *one;
}

MemoryUse memory_use(int index) {
  return static_cast<Allocator&>(allocator()).use(index);
}

void reset_peaks() {
  for (int i = 0; i < installed().devices; ++i) {
    allocator().resetPeakStats(static_cast<c10::DeviceIndex>(i));
  }
}

}  // namespace lockstep::sim
