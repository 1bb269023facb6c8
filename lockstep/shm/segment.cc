#include "lockstep/shm/segment.h"

#include <cerrno>
#include <cstring>
#include <fcntl.h>
#include <map>
#include <mutex>
#include <string>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

#include <fmt/format.h>

#include "lockstep/base/error.h"
#include "lockstep/base/out_of_resources.h"
#include "lockstep/base/round_up.h"

namespace lockstep::shm {
namespace {

constexpr int kSeals = F_SEAL_SHRINK | F_SEAL_GROW | F_SEAL_SEAL;

// The segments that this process created, by inode. Ranks that are threads
// share a mapping. This saves page tables, and a sanitizer sees that the memory
// is the same.
struct OwnSegments {
  std::mutex mutex;
  std::map<uint64_t, std::weak_ptr<const Segment>> by_inode;
};

// Never destroyed, because a segment may be destroyed when the process ends.
OwnSegments& own_segments() {
  static auto* const segments = new OwnSegments;
  return *segments;
}

[[noreturn]] void fail(const std::string& what, int error,
                       const std::string& fix = {}) {
  if (is_out_of_resources(error)) throw OutOfResources("comm", what, error);
  // `ulimit -f` limits shared memory as well as files.
  const bool is_bounded = error == EFBIG;
  throw CommError(
      {.code = ErrorCode::kNoSharedMemory,
       .what = what,
       .got = std::strerror(error) +
              (is_bounded ? "; " + file_size_limit() : std::string()),
       .fix = is_bounded ? "raise the limit (ulimit -f)" : fix});
}

std::span<std::byte> map(const FileDescriptor& file, size_t bytes) {
  void* memory =
      ::mmap(nullptr, bytes, PROT_READ | PROT_WRITE, MAP_SHARED, file.get(), 0);
  if (memory == MAP_FAILED) {
    fail(fmt::format("can't map {} bytes of shared memory", bytes), errno);
  }
  return {static_cast<std::byte*>(memory), bytes};
}

}  // namespace

std::shared_ptr<const Segment> Segment::create(size_t bytes) {
  const auto page = static_cast<size_t>(::sysconf(_SC_PAGESIZE));
  bytes = round_up(std::max<size_t>(bytes, 1), page);
  FileDescriptor file(
      ::memfd_create("lockstep", MFD_CLOEXEC | MFD_ALLOW_SEALING));
  if (!file.is_open()) fail("can't create shared memory", errno);
  struct stat status {};
  if (::ftruncate(file.get(), static_cast<off_t>(bytes)) != 0 ||
      ::fcntl(file.get(), F_ADD_SEALS, kSeals) != 0 ||
      ::fstat(file.get(), &status) != 0) {
    fail(fmt::format("can't create {} bytes of shared memory", bytes), errno);
  }
  const std::span<std::byte> memory = map(file, bytes);
  std::shared_ptr<const Segment> segment(
      new Segment(std::move(file), memory, status.st_ino));
  OwnSegments& own = own_segments();
  const std::lock_guard lock(own.mutex);
  own.by_inode[status.st_ino] = segment;
  return segment;
}

std::shared_ptr<const Segment> Segment::open(const SegmentAddress& address) {
  if (auto segment = find_own(address)) return segment;
  auto segment = map_file(address);
  segment->close_file();
  return segment;
}

std::shared_ptr<const Segment> Segment::adopt(const SegmentAddress& address) {
  if (auto segment = find_own(address)) return segment;
  return map_file(address);
}

std::shared_ptr<const Segment> Segment::find_own(
    const SegmentAddress& address) {
  if (address.pid != ::getpid()) return nullptr;
  OwnSegments& own = own_segments();
  const std::lock_guard lock(own.mutex);
  const auto found = own.by_inode.find(address.inode);
  return found != own.by_inode.end() ? found->second.lock() : nullptr;
}

std::shared_ptr<const Segment> Segment::map_file(
    const SegmentAddress& address) {
  const std::string path =
      fmt::format("/proc/{}/fd/{}", address.pid, address.fd);
  FileDescriptor file(::open(path.c_str(), O_RDWR | O_CLOEXEC));
  if (!file.is_open()) {
    fail(fmt::format("can't open the shared memory of process {}", address.pid),
         errno,
         "ranks that share memory run as one user and see each other's "
         "processes; otherwise use the backend tcp");
  }
  struct stat status {};
  const int seals = ::fcntl(file.get(), F_GET_SEALS);
  if (::fstat(file.get(), &status) != 0 || seals < 0 ||
      (seals & kSeals) != kSeals || status.st_ino != address.inode ||
      static_cast<uint64_t>(status.st_size) != address.bytes) {
    throw CommError(
        {.code = ErrorCode::kNoSharedMemory,
         .what = fmt::format("file {} of process {} is not the shared memory "
                             "that was announced",
                             address.fd, address.pid),
         .expected = fmt::format("a sealed memfd of {} bytes", address.bytes),
         .got = fmt::format("{} bytes, inode {}, seals {:#x}", status.st_size,
                            status.st_ino, seals)});
  }
  const std::span<std::byte> memory = map(file, address.bytes);
  return std::shared_ptr<const Segment>(
      new Segment(std::move(file), memory, status.st_ino));
}

Segment::~Segment() {
  ::munmap(bytes_.data(), bytes_.size());
  OwnSegments& own = own_segments();
  const std::lock_guard lock(own.mutex);
  const auto found = own.by_inode.find(inode_);
  if (found != own.by_inode.end() && found->second.expired()) {
    own.by_inode.erase(found);
  }
}

SegmentAddress Segment::address() const {
  return {.pid = ::getpid(),
          .fd = file_.get(),
          .inode = inode_,
          .bytes = bytes_.size()};
}

}  // namespace lockstep::shm
