#pragma once

#include <cstdint>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "lockstep/device/device.h"

namespace lockstep {

/// Resources of a device.
struct Capacity {
  std::string name;
  int64_t memory_bytes = 0;  ///< 0: shared with the other devices, as for
                             ///< slices
  int64_t cores = 0;         ///< multiprocessors of a GPU, cores of a slice
};

/// Returns the warning of nn.DataParallel if a device has less than 75 % of the
/// memory, or else of the cores, of another one. Every step waits for that
/// device.
std::optional<std::string> imbalance(std::span<const Capacity> devices);

/// Logs that warning if `devices` are not balanced.
void warn_of_imbalance(const std::vector<Device>& devices);

}  // namespace lockstep
