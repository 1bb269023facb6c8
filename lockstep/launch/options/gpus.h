#pragma once

#include <map>
#include <string>
#include <vector>

// GPUs as the launcher sees them. It asks the CUDA driver, because it starts
// without LibTorch.
namespace lockstep::launch {

/// Returns the number of GPUs that CUDA_VISIBLE_DEVICES allows; 0 without a
/// driver.
int gpu_count();

/// Returns the PCI addresses of these GPUs, in their order, as /sys writes
/// them: "0000:3b:00.0". Throws LaunchError if the driver does not know one.
std::vector<std::string> gpu_pci_addresses();

/// Returns the variables that show a worker only the GPU of its local rank, as
/// torchrun's --virtual-local-rank sets them: CUDA_VISIBLE_DEVICES, and
/// HIP_VISIBLE_DEVICES if this process has it. Throws InvalidArgument if this
/// process sees fewer GPUs because of these variables.
std::map<std::string, std::string> variables_of_own_gpu(int local_rank);

}  // namespace lockstep::launch
