// Stands for libcuda.so's virtual memory: a GPU's memory is a file in memory,
// and its addresses are this process's. Pages are of 64 KiB.
#include <cstddef>
#include <cstdlib>
#include <map>
#include <sys/mman.h>
#include <unistd.h>

namespace {

constexpr size_t kPage = 64 << 10;
constexpr int kInvalid = 1;      // CUDA_ERROR_INVALID_VALUE
constexpr int kOutOfMemory = 2;  // CUDA_ERROR_OUT_OF_MEMORY

struct Region {
  size_t bytes = 0;
  size_t mapped = 0;
};

std::map<unsigned long long, size_t> memories;  // bytes, by file
std::map<unsigned long long, Region> regions;   // by their first address
long limit = -1;                                // of bytes; -1: none
size_t taken = 0;

Region* region_of(unsigned long long address, size_t bytes) {
  for (auto& [begin, region] : regions) {
    if (address >= begin && address + bytes <= begin + region.bytes) {
      return &region;
    }
  }
  return nullptr;
}

void* pointer(unsigned long long address) {
  return reinterpret_cast<void*>(address);
}

}  // namespace

extern "C" {

// Of the tests.
void fake_cuda_limit(long bytes) { limit = bytes; }
size_t fake_cuda_left() { return memories.size() + regions.size(); }

int cuMemGetAllocationGranularity(size_t* bytes, const void*, int) {
  *bytes = kPage;
  return 0;
}

int cuMemAddressReserve(unsigned long long* address, size_t bytes, size_t,
                        unsigned long long, unsigned long long) {
  if (bytes == 0 || bytes % kPage != 0) return kInvalid;
  void* memory = ::mmap(nullptr, bytes, PROT_NONE,
                        MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
  if (memory == MAP_FAILED) return kOutOfMemory;
  *address = reinterpret_cast<unsigned long long>(memory);
  regions[*address] = {.bytes = bytes};
  return 0;
}

int cuMemCreate(unsigned long long* memory, size_t bytes, const void*,
                unsigned long long) {
  if (bytes == 0 || bytes % kPage != 0) return kInvalid;
  if (limit >= 0 && taken + bytes > static_cast<size_t>(limit)) {
    return kOutOfMemory;
  }
  const int file = ::memfd_create("fake-cuda", MFD_CLOEXEC);
  if (file < 0 || ::ftruncate(file, static_cast<off_t>(bytes)) != 0) {
    return kOutOfMemory;
  }
  *memory = static_cast<unsigned long long>(file);
  memories[*memory] = bytes;
  taken += bytes;
  return 0;
}

int cuMemMap(unsigned long long address, size_t bytes, size_t offset,
             unsigned long long memory, unsigned long long) {
  const auto found = memories.find(memory);
  Region* region = region_of(address, bytes);
  if (found == memories.end() || region == nullptr || bytes % kPage != 0 ||
      offset + bytes > found->second) {
    return kInvalid;
  }
  if (::mmap(pointer(address), bytes, PROT_NONE, MAP_SHARED | MAP_FIXED,
             static_cast<int>(memory),
             static_cast<off_t>(offset)) == MAP_FAILED) {
    return kOutOfMemory;
  }
  region->mapped += bytes;
  return 0;
}

int cuMemSetAccess(unsigned long long address, size_t bytes, const void*,
                   size_t) {
  const Region* region = region_of(address, bytes);
  // An address without memory can't be opened.
  if (region == nullptr || region->mapped != region->bytes) return kInvalid;
  return ::mprotect(pointer(address), bytes, PROT_READ | PROT_WRITE);
}

int cuMemUnmap(unsigned long long address, size_t bytes) {
  Region* region = region_of(address, bytes);
  if (region == nullptr || region->mapped < bytes) return kInvalid;
  region->mapped -= bytes;
  return ::mmap(pointer(address), bytes, PROT_NONE,
                MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE | MAP_FIXED, -1,
                0) == MAP_FAILED
             ? kInvalid
             : 0;
}

int cuMemRelease(unsigned long long memory) {
  const auto found = memories.find(memory);
  if (found == memories.end()) return kInvalid;
  taken -= found->second;
  memories.erase(found);
  return ::close(static_cast<int>(memory));
}

int cuMemAddressFree(unsigned long long address, size_t bytes) {
  const auto found = regions.find(address);
  if (found == regions.end() || found->second.bytes != bytes ||
      found->second.mapped != 0) {
    return kInvalid;
  }
  regions.erase(found);
  return ::munmap(pointer(address), bytes);
}

int cuGetErrorString(int result, const char** text) {
  *text = result == kOutOfMemory ? "out of memory" : "invalid argument";
  return 0;
}
}
