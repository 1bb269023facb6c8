#include "lockstep/shm/spare_segments.h"

#include <algorithm>
#include <utility>

namespace lockstep::shm {

std::shared_ptr<const Segment> SpareSegments::take(size_t bytes) {
  {
    const std::lock_guard lock(mutex_);
    const auto found =
        std::find_if(spares_.begin(), spares_.end(), [&](const auto& spare) {
          return spare->bytes().size() >= bytes &&
                 spare->bytes().size() / 2 <= bytes;
        });
    if (found != spares_.end()) {
      auto segment = std::move(*found);
      spares_.erase(found);
      bytes_ -= segment->bytes().size();
      return segment;
    }
  }
  return Segment::create(bytes);
}

void SpareSegments::give_back(std::shared_ptr<const Segment> segment) {
  const size_t bytes = segment->bytes().size();
  if (bytes > kMostBytes) return;
  const std::lock_guard lock(mutex_);
  while (bytes_ + bytes > kMostBytes) {
    bytes_ -= spares_.front()->bytes().size();
    spares_.erase(spares_.begin());
  }
  bytes_ += bytes;
  spares_.push_back(std::move(segment));
}

}  // namespace lockstep::shm
