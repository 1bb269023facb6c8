#pragma once

#include <functional>

#include <torch/types.h>

#include "lockstep/device/links/link.h"

// Links whose copies are not LibTorch's: those that are staged, and those with
// a simulated fault (link_faults.h). Defined in device_copy.cc.
namespace lockstep {

/// Returns true if any link of this process is staged or has a fault. Otherwise
/// the functions of device_copy.h only call LibTorch's.
bool has_special_links();

/// Calls `copy()`, which copies directly to `destination`, and applies the
/// faults of `link`. `destination` must be dense.
void with_faults(const Link& link, torch::Tensor& destination,
                 const std::function<void()>& copy);

}  // namespace lockstep
