#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <span>
#include <sys/types.h>
#include <utility>

#include "lockstep/base/file_descriptor.h"

namespace lockstep::shm {

/// The address of a segment, with which other processes of this host open it.
/// Fits in a message.
struct SegmentAddress {
  pid_t pid = 0;
  int fd = -1;
  uint64_t inode = 0;
  uint64_t bytes = 0;

  bool operator==(const SegmentAddress&) const = default;
};

/// Memory that processes of one host share. It is a memfd, so no name can be
/// left behind, the size of /dev/shm does not limit it, and it is freed when
/// the last process that maps it ends, even if that is killed. It is sealed, so
/// no process can shrink it while another reads it.
class Segment {
 public:
  /// Creates a segment of `bytes` zeros, rounded up to pages. Pages take memory
  /// only when they are touched. Throws CommError or OutOfResources.
  static std::shared_ptr<const Segment> create(size_t bytes);
  /// Opens the segment at `address`. In the process that created it, returns
  /// the same mapping. Checks that `address` names a sealed memfd of that size.
  /// No descriptor stays open, because a mapping needs none. Throws CommError,
  /// or OutOfResources if this process reached a limit.
  static std::shared_ptr<const Segment> open(const SegmentAddress& address);
  /// Opens the segment and keeps its descriptor, so that other processes can
  /// open it from this one by its address(), even if its creator has ended.
  static std::shared_ptr<const Segment> adopt(const SegmentAddress& address);

  ~Segment();
  Segment(const Segment&) = delete;
  Segment& operator=(const Segment&) = delete;

  std::span<std::byte> bytes() const { return bytes_; }
  /// Returns the address for open() in other processes. Only for segments that
  /// this process created or adopted.
  SegmentAddress address() const;
  /// Closes the descriptor when all processes have opened the segment. Mappings
  /// stay valid.
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
