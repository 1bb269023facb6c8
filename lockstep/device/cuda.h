#pragma once

#include <cstdint>

#include "lockstep/device/memory.h"

// What needs CUDA. cuda.cc does it; no_cuda.cc stands in for a build without
// a toolkit: it counts no devices and throws DeviceError from the rest.
namespace lockstep::cuda {

struct Properties {
  int64_t memory_bytes = 0;
  int multiprocessors = 0;
  char name[256] = {};
};

bool is_built();
int device_count();
Properties properties(int index);
/// Makes `index` and a stream of its own current for this thread.
void bind_thread(int index);
/// Waits until this thread's stream on its current device is idle.
void synchronize();
MemoryStats memory_stats(int index);
void reset_peak_memory();
/// Seeds the default generator of the thread's current device.
void seed_current_device(uint64_t seed);

}  // namespace lockstep::cuda
