#pragma once

#include <cstdint>
#include <memory>
#include <string>

#include <ATen/core/Generator.h>
#include <ATen/core/Tensor.h>

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
/// Throws DeviceError if there is no GPU `index`, as all of these do.
Properties properties(int index);
/// Makes `index` and a stream of its own current for this thread.
void bind_thread(int index);
/// Waits until this thread's stream on its current device is idle.
void synchronize();
/// Waits until all streams on GPU `index` are idle. It does not throw: an error
/// of the GPU comes again in the next call.
void wait_for_all(int index) noexcept;
MemoryStats memory_stats(int index);
/// Of every GPU that is in use by this process.
void reset_peak_memory();
/// Seeds the default generator of the thread's current device. Does nothing
/// if the process has not used that device.
void seed_current_device(uint64_t seed);
/// The default generator of the thread's current device; undefined if the
/// process has not used that device.
at::Generator current_generator();

/// Copies `source` to `destination`, which is on another GPU, by a kernel that
/// runs there and loads from the first one's memory. False, and nothing is
/// done, where GPUs can't read each other's memory.
bool copy_by_kernel(const at::Tensor& destination, const at::Tensor& source);
/// What a GPU is, across reboots: "GPU-8f6d..." as nvidia-smi has it.
std::string uuid(int index);
/// Of the driver, as CUDA numbers it: 13000.
int driver_version();

/// A point in the work of a stream, that another may wait for.
struct Fence;
/// The end of what this thread's stream on GPU `index` has been given so far.
std::shared_ptr<Fence> record_fence(int index);
/// Makes this thread's stream on the fence's GPU wait for it.
void wait_fence(const std::shared_ptr<Fence>& fence);

}  // namespace lockstep::cuda
