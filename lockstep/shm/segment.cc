#include "lockstep/shm/segment.h"

#include <cerrno>
#include <cstring>
#include <fcntl.h>
#include <map>
#include <mutex>
#include <pthread.h>
#include <set>
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

std::string path_of(const SegmentAddress& address) {
  return fmt::format("/proc/{}/fd/{}", address.pid, address.fd);
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

/// The segments of this process.
class LiveSegments {
 public:
  // Never destroyed, because a segment may be destroyed when the process ends.
  static LiveSegments& get() {
    static auto* const segments = new LiveSegments;
    return *segments;
  }

  void add(Segment& segment) {
    const std::lock_guard lock(mutex_);
    all_.insert(&segment);
  }
  void remove(Segment& segment) {
    const std::lock_guard lock(mutex_);
    all_.erase(&segment);
    const auto found = created_.find(segment.address_.inode);
    if (found != created_.end() && found->second.expired()) {
      created_.erase(found);
    }
  }

  void add_created(const std::shared_ptr<const Segment>& segment) {
    const std::lock_guard lock(mutex_);
    created_[segment->address_.inode] = segment;
  }
  std::shared_ptr<const Segment> created(uint64_t inode) {
    const std::lock_guard lock(mutex_);
    const auto found = created_.find(inode);
    return found != created_.end() ? found->second.lock() : nullptr;
  }

 private:
  LiveSegments() {
    ::pthread_atfork([] { get().mutex_.lock(); }, [] { get().mutex_.unlock(); },
                     [] {
                       for (Segment* segment : get().all_) {
                         segment->make_private();
                       }
                       get().created_.clear();
                       get().mutex_.unlock();
                     });
  }

  std::mutex mutex_;
  std::set<Segment*> all_;
  // The segments that this process created, by inode. Ranks that are threads
  // share a mapping. This saves page tables, and a sanitizer sees that the
  // memory is the same.
  std::map<uint64_t, std::weak_ptr<const Segment>> created_;
};

Segment::Segment(FileDescriptor file, std::span<std::byte> bytes,
                 const SegmentAddress& address)
    : file_(std::move(file)),
      bytes_(bytes),
      address_(address),
      path_(path_of(address)) {
  LiveSegments::get().add(*this);
}

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
  const SegmentAddress address{.pid = ::getpid(),
                               .fd = file.get(),
                               .inode = status.st_ino,
                               .bytes = bytes};
  std::shared_ptr<const Segment> segment(
      new Segment(std::move(file), memory, address));
  LiveSegments::get().add_created(segment);
  return segment;
}

std::shared_ptr<const Segment> Segment::open(const SegmentAddress& address) {
  if (auto segment = find_own(address)) return segment;
  return map_file(address, File::kClose);
}

std::shared_ptr<const Segment> Segment::adopt(const SegmentAddress& address) {
  if (auto segment = find_own(address)) return segment;
  return map_file(address, File::kKeep);
}

std::shared_ptr<const Segment> Segment::find_own(
    const SegmentAddress& address) {
  if (address.pid != ::getpid()) return nullptr;
  return LiveSegments::get().created(address.inode);
}

std::shared_ptr<const Segment> Segment::map_file(const SegmentAddress& address,
                                                 File keeps) {
  const std::string path = path_of(address);
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
  SegmentAddress kept = address;
  if (keeps == File::kKeep) {
    kept.pid = ::getpid();
    kept.fd = file.get();
  } else {
    file.close();
  }
  return std::shared_ptr<const Segment>(
      new Segment(std::move(file), memory, kept));
}

Segment::~Segment() {
  LiveSegments::get().remove(*this);
  ::munmap(bytes_.data(), bytes_.size());
}

// Called between fork() and anything else, so it makes system calls only.
void Segment::make_private() noexcept {
  FileDescriptor opened;
  if (!file_.is_open()) {
    opened = FileDescriptor(::open(path_.c_str(), O_RDWR | O_CLOEXEC));
  }
  const int file = file_.is_open() ? file_.get() : opened.get();
  struct stat status {};
  // The process that created it may have ended, and another may have its
  // number.
  const bool is_found = file >= 0 && ::fstat(file, &status) == 0 &&
                        status.st_ino == address_.inode &&
                        static_cast<size_t>(status.st_size) == bytes_.size();
  const int flags = MAP_PRIVATE | MAP_FIXED | (is_found ? 0 : MAP_ANONYMOUS);
  const void* memory =
      ::mmap(bytes_.data(), bytes_.size(), PROT_READ | PROT_WRITE, flags,
             is_found ? file : -1, 0);
  // A child that crashes is better than one that changes the job's memory.
  if (memory == MAP_FAILED) ::munmap(bytes_.data(), bytes_.size());
  file_.close();
}

}  // namespace lockstep::shm
