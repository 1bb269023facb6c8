#pragma once

#include <cstdint>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "lockstep/device/device.h"

namespace lockstep {

/// What a device has to work with.
struct Capacity {
  std::string name;
  int64_t memory_bytes = 0;  ///< 0: shared with the others, as slices do
  int64_t cores = 0;         ///< multiprocessors of a GPU, cores of a slice
};

/// nn.DataParallel's warning: a device has less than 75 % of the memory, or
/// else of the cores, of another one, and the whole step waits for it.
std::optional<std::string> imbalance(std::span<const Capacity> devices);

/// Looks at the devices and logs that warning.
void warn_of_imbalance(const std::vector<Device>& devices);

}  // namespace lockstep
