#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <span>
#include <sys/types.h>
#include <utility>

#include "lockstep/base/file_descriptor.h"

namespace lockstep::shm {

/// Where another process of this host finds a segment. Fits in a message.
struct SegmentAddress {
  pid_t pid = 0;
  int fd = -1;
  uint64_t inode = 0;
  uint64_t bytes = 0;

  bool operator==(const SegmentAddress&) const = default;
};

/// Memory that processes of one host share: a memfd, so it has no name that
/// could be left behind, is not bounded by the size of /dev/shm, and goes with
/// the last process that maps it, killed ones included. Sealed: no process can
/// cut it short under another that reads it.
class Segment {
 public:
  /// `bytes` (rounded up to pages) of zeros, of which none takes memory before
  /// it is touched. Throws CommError or OutOfResources.
  static std::shared_ptr<const Segment> create(size_t bytes);
  /// The segment at `address`; in its own process that very mapping. The
  /// address is checked: it must name a sealed memfd of that size. What is
  /// mapped needs no descriptor, so none stays open. Throws CommError, and
  /// OutOfResources if this process is what can't map it.
  static std::shared_ptr<const Segment> open(const SegmentAddress& address);
  /// The same, and others can open it here, too: it has an address(), also
  /// when the process that made it is gone.
  static std::shared_ptr<const Segment> adopt(const SegmentAddress& address);

  ~Segment();
  Segment(const Segment&) = delete;
  Segment& operator=(const Segment&) = delete;

  std::span<std::byte> bytes() const { return bytes_; }
  /// For open() by others: of a segment that was made or adopted here.
  SegmentAddress address() const;
  /// Once all have opened it: its mappings stay, its descriptor goes.
  void close_file() const { file_.close(); }

 private:
  Segment(FileDescriptor file, std::span<std::byte> bytes, uint64_t inode)
      : file_(std::move(file)), bytes_(bytes), inode_(inode) {}

  static std::shared_ptr<const Segment> find_own(const SegmentAddress& address);
  static std::shared_ptr<const Segment> map_file(const SegmentAddress& address);

  mutable FileDescriptor file_;
  std::span<std::byte> bytes_;
  uint64_t inode_;
};

}  // namespace lockstep::shm
