#include "lockstep/device/cuda/sparse_gpu_memory.h"

#include <algorithm>
#include <array>
#include <atomic>

#include <fmt/format.h>

#include "lockstep/base/error.h"
#include "lockstep/base/round_up.h"

namespace lockstep {
namespace {

constexpr size_t kMaxGpus = 64;
std::array<std::atomic<int64_t>, kMaxGpus> live;

std::atomic<int64_t>& live_of(int gpu) {
  return live[static_cast<size_t>(gpu) % kMaxGpus];
}

}  // namespace

SparseGpuMemory::SparseGpuMemory(const CudaDriver& driver, int gpu,
                                 int64_t bytes, std::span<const ByteRange> used)
    : driver_(driver) {
  properties_.location.id = gpu;
  check(driver_.granularity(&granule_, &properties_, /*minimum=*/0),
        "find the size of pages");
  reserved_ = static_cast<size_t>(
      round_up(std::max<int64_t>(bytes, 1), static_cast<int64_t>(granule_)));
  check(driver_.reserve(&begin_, reserved_, 0, 0, 0), "reserve addresses");
  try {
    map(used);
  } catch (...) {
    free();
    throw;
  }
  live_of(gpu).fetch_add(memory_bytes_, std::memory_order_relaxed);
}

SparseGpuMemory::~SparseGpuMemory() {
  live_of(properties_.location.id)
      .fetch_sub(memory_bytes_, std::memory_order_relaxed);
  free();
}

int64_t SparseGpuMemory::live_bytes(int gpu) {
  return live_of(gpu).load(std::memory_order_relaxed);
}

void SparseGpuMemory::check(CudaDriver::Result result, const char* act) {
  if (result == CudaDriver::kSuccess) return;
  throw DeviceError(
      {.code = ErrorCode::kOutOfMemory,
       .what = fmt::format("can't {} on cuda:{}", act, properties_.location.id),
       .got = driver_.describe(result),
       .fix = "use a smaller model or batch, or more devices"});
}

void SparseGpuMemory::map(std::span<const ByteRange> used) {
  // The whole granules that are used. Adjacent ones are joined.
  std::vector<ByteRange> own;
  const auto granule = static_cast<int64_t>(granule_);
  for (const ByteRange& range : used) {
    if (range.begin >= range.end) continue;
    const int64_t begin = range.begin / granule * granule;
    const int64_t end = round_up(range.end, granule);
    if (!own.empty() && begin <= own.back().end) {
      own.back().end = std::max(own.back().end, end);
    } else {
      own.push_back({.begin = begin, .end = end});
    }
  }
  size_t at = 0;
  CudaDriver::Memory shared = 0;
  const auto map_shared_up_to = [&](size_t end) {
    if (at < end && shared == 0) shared = create(granule_);
    for (; at < end; at += granule_) map_at(at, granule_, shared);
  };
  for (const ByteRange& range : own) {
    map_shared_up_to(static_cast<size_t>(range.begin));
    const auto bytes = static_cast<size_t>(range.end - range.begin);
    map_at(at, bytes, create(bytes));
    at += bytes;
  }
  map_shared_up_to(reserved_);
  CudaDriver::Access access;
  access.location = properties_.location;
  check(driver_.set_access(begin_, reserved_, &access, 1), "open memory");
}

CudaDriver::Memory SparseGpuMemory::create(size_t bytes) {
  CudaDriver::Memory memory = 0;
  check(driver_.create(&memory, bytes, &properties_, 0), "take memory");
  memories_.push_back(memory);
  memory_bytes_ += static_cast<int64_t>(bytes);
  return memory;
}

void SparseGpuMemory::map_at(size_t offset, size_t bytes,
                             CudaDriver::Memory memory) {
  check(driver_.map(begin_ + offset, bytes, 0, memory, 0), "map memory");
  mapped_.push_back({.begin = static_cast<int64_t>(offset),
                     .end = static_cast<int64_t>(offset + bytes)});
}

void SparseGpuMemory::free() noexcept {
  for (const ByteRange& range : mapped_) {
    driver_.unmap(begin_ + static_cast<size_t>(range.begin),
                  static_cast<size_t>(range.end - range.begin));
  }
  for (const CudaDriver::Memory memory : memories_) driver_.release(memory);
  driver_.free_addresses(begin_, reserved_);
}

}  // namespace lockstep
