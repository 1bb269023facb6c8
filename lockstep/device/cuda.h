#pragma once

#include <cstdint>
#include <memory>
#include <string>

#include <ATen/core/Generator.h>
#include <ATen/core/Tensor.h>

#include "lockstep/device/memory.h"

// Functions that need CUDA. cuda.cc implements them. In a build without a CUDA
// toolkit, no_cuda.cc replaces it, which counts no devices and throws
// DeviceError from the other functions.
namespace lockstep::cuda {

struct Properties {
  int64_t memory_bytes = 0;
  int multiprocessors = 0;
  char name[256] = {};
};

bool is_built();
int device_count();
/// Throws DeviceError if there is no GPU `index`, as do all of these functions.
Properties properties(int index);
/// Makes cuDNN add in a fixed order in this process. Its fastest kernels for
/// the gradient of a convolution give other bits each time. Only the first call
/// has an effect, so a program may undo it.
void fix_order_of_sums();
/// Makes GPU `index` and a stream from its pool current for this thread.
void bind_thread(int index);
/// Waits until this thread's stream on its current device is idle.
void synchronize();
/// Waits until all streams on GPU `index` are idle. It does not throw. The next
/// call reports an error of the GPU again.
void wait_for_all(int index) noexcept;
MemoryStats memory_stats(int index);
/// Resets the peaks of all GPUs that this process uses.
void reset_peak_memory();
/// Returns the default generator of the thread's current device. It is
/// undefined if the process has not used that device.
at::Generator current_generator();

/// Copies `source` to `destination`, which is on another GPU, by a kernel that
/// runs on that GPU and loads from the memory of the first. Does nothing and
/// returns false if GPUs can't read each other's memory.
bool copy_by_kernel(const at::Tensor& destination, const at::Tensor& source);
/// Returns an identifier of the GPU that is stable across reboots:
/// "GPU-8f6d...", as nvidia-smi prints it.
std::string uuid(int index);
/// Returns the driver's version in CUDA's numbering: 13000. 0 if unknown.
int driver_version();

/// A point in the work of a stream that another stream can wait for.
struct Fence;
/// Returns a fence at the end of the work that this thread's stream on GPU
/// `index` has been given so far.
std::shared_ptr<Fence> record_fence(int index);
/// Makes this thread's stream on the fence's GPU wait for it.
void wait_fence(const std::shared_ptr<Fence>& fence);

}  // namespace lockstep::cuda
