#include "tests/accelerator/sim/memory.h"

#include <cerrno>
#include <cstdint>
#include <stdexcept>
#include <sys/mman.h>
#include <system_error>
#include <unistd.h>

#include "lockstep/base/round_up.h"
#include "tests/accelerator/sim/accelerator.h"

namespace lockstep::sim {
namespace {

constexpr size_t kAllBytes = kSpaceBytes * kMaxDevices;

std::byte* map(int file, int protection) {
  void* const start =
      mmap(nullptr, kAllBytes, protection, MAP_SHARED | MAP_NORESERVE, file, 0);
  if (start == MAP_FAILED) {
    throw std::system_error(errno, std::generic_category(), "mmap");
  }
  return static_cast<std::byte*>(start);
}

}  // namespace

DeviceMemory& DeviceMemory::get() {
  static auto* const memory = new DeviceMemory();  // streams outlive statics
  return *memory;
}

DeviceMemory::DeviceMemory() {
  const int file = memfd_create("simulated-device-memory", MFD_CLOEXEC);
  if (file < 0 || ftruncate(file, static_cast<off_t>(kAllBytes)) != 0) {
    throw std::system_error(errno, std::generic_category(), "memfd_create");
  }
  outside_ = map(file, PROT_NONE);
  inside_ = map(file, PROT_READ | PROT_WRITE);
  close(file);
}

std::byte* DeviceMemory::space(int index) const {
  return outside_ + static_cast<size_t>(index) * kSpaceBytes;
}

int DeviceMemory::device_of(const void* address) const {
  const auto offset = reinterpret_cast<uintptr_t>(address) -
                      reinterpret_cast<uintptr_t>(outside_);
  return offset < kAllBytes ? static_cast<int>(offset / kSpaceBytes) : -1;
}

std::byte* DeviceMemory::for_kernel(const void* address) const {
  if (device_of(address) < 0) {
    throw std::logic_error("a kernel was given an address of the host");
  }
  return inside_ + (static_cast<const std::byte*>(address) - outside_);
}

void DeviceMemory::discard(std::byte* address, size_t bytes) const {
  // Blocks need not begin or end at a page, and madvise() refuses such ranges.
  const auto page = static_cast<uintptr_t>(sysconf(_SC_PAGESIZE));
  const auto at = reinterpret_cast<uintptr_t>(for_kernel(address));
  const uintptr_t begin = round_up(at, page);
  const uintptr_t end = (at + bytes) / page * page;
  if (begin >= end) return;
  if (madvise(reinterpret_cast<void*>(begin), end - begin, MADV_REMOVE) != 0) {
    throw std::system_error(errno, std::generic_category(), "madvise");
  }
}

}  // namespace lockstep::sim
