#pragma once

#include <cstddef>
#include <memory>
#include <vector>

#include "lockstep/comm/transport/shared_memory.h"
#include "lockstep/shm/segment.h"

namespace lockstep {

/// One segment for each rank, with the bytes that the rank asked for.
struct SharedMemory::Impl {
  std::vector<std::shared_ptr<const shm::Segment>> segments;
  std::vector<size_t> bytes;
};

}  // namespace lockstep
