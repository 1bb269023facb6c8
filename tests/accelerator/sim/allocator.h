#pragma once

#include <c10/core/CachingDeviceAllocator.h>

namespace lockstep::sim {

/// Returns the allocator of the simulated devices.
///
/// As the one of CUDA, it is ordered by streams: a freed block may be used
/// again by the stream that it was allocated on, without a wait. Blocks that
/// another stream uses have to be marked with record_stream(). This allocator
/// shows where that is missing: it fills a block with NaN when it is freed and
/// when it is allocated, and gives the block that was freed last to the next
/// allocation of its stream.
c10::DeviceAllocator& allocator();

}  // namespace lockstep::sim
