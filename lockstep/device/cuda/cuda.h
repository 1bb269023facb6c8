#pragma once

#include <cstdint>
#include <string>

#include <ATen/core/Tensor.h>

// Functions that only CUDA supports; the rest is in accelerator.h. cuda.cc
// implements them. In a build without a CUDA toolkit, it is replaced by
// no_cuda.cc, where they throw DeviceError.
namespace lockstep::cuda {

struct Properties {
  int64_t memory_bytes = 0;
  int multiprocessors = 0;
  char name[256] = {};
};

bool is_built();
/// Throws DeviceError if there is no GPU `index`, as do all of these functions.
Properties properties(int index);
/// Makes cuDNN add in a fixed order in this process. Its fastest kernels for
/// the gradient of a convolution give other bits each time. Only the first call
/// has an effect, so a program may undo it.
void fix_order_of_sums();
/// Copies `source` to `destination`, which is on another GPU, by a kernel that
/// runs on that GPU and loads from the memory of the first. Does nothing and
/// returns false if GPUs can't read each other's memory.
bool copy_by_kernel(const at::Tensor& destination, const at::Tensor& source);
/// Returns an identifier of the GPU that is stable across reboots:
/// "GPU-8f6d...", as nvidia-smi prints it.
std::string uuid(int index);
/// Returns the driver's version in CUDA's numbering: 13000. 0 if unknown.
int driver_version();

}  // namespace lockstep::cuda
