#include "lockstep/shm/opened_segments.h"

#include <algorithm>
#include <unistd.h>

#include "lockstep/shm/spare_segments.h"

namespace lockstep::shm {

std::shared_ptr<const Segment> OpenedSegments::open(
    const SegmentAddress& address) {
  // Segments of this process are found anyway and need not be kept open.
  if (address.pid == ::getpid()) return Segment::open(address);
  const std::lock_guard lock(mutex_);
  // An inode number is not reused while the inode is mapped.
  const auto found = std::find_if(
      opened_.begin(), opened_.end(),
      [&](const Opened& opened) { return opened.address == address; });
  if (found != opened_.end()) {
    opened_.splice(opened_.begin(), opened_, found);
    return opened_.front().segment;
  }
  auto segment = Segment::open(address);
  const size_t bytes = segment->bytes().size();
  if (bytes > SpareSegments::kMostBytes) return segment;
  opened_.push_front({address, segment});
  bytes_ += bytes;
  while (bytes_ > SpareSegments::kMostBytes) {
    bytes_ -= opened_.back().segment->bytes().size();
    opened_.pop_back();
  }
  return segment;
}

}  // namespace lockstep::shm
