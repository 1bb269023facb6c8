#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <span>
#include <string>
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
///
/// In a child of fork(), which is not a process of the job, the mapping becomes
/// private: what the child writes stays its own. Pages that it has not written
/// may still show what the job's processes write.
class Segment {
 public:
  /// Creates a segment of `bytes` zeros, rounded up to pages. Pages take memory
  /// only when they are touched. Throws CommError or OutOfResources.
  static std::shared_ptr<const Segment> create(size_t bytes);
  /// Opens the segment at `address`. In the process that created it, returns
  /// the same mapping. Checks that `address` names a sealed memfd of that size.
  /// Only the process that created it keeps a descriptor. Throws CommError, or
  /// OutOfResources if this process reached a limit.
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
  SegmentAddress address() const { return address_; }

 private:
  friend class LiveSegments;
  enum class File { kClose, kKeep };

  /// `file` is not open if this process does not keep it. Then the file at
  /// `address` is that of another process.
  Segment(FileDescriptor file, std::span<std::byte> bytes,
          const SegmentAddress& address);

  static std::shared_ptr<const Segment> find_own(const SegmentAddress& address);
  static std::shared_ptr<const Segment> map_file(const SegmentAddress& address,
                                                 File file);
  /// Replaces the mapping by a private one, in a child of fork().
  void make_private() noexcept;

  FileDescriptor file_;
  std::span<std::byte> bytes_;
  SegmentAddress address_;
  std::string path_;  // of the file at address_, to open it
};

}  // namespace lockstep::shm
