#pragma once

#include <functional>
#include <optional>

#include <torch/types.h>

#include "lockstep/device/links/link.h"

// Links whose copies are not LibTorch's: those that are staged, and those that
// a test program breaks. Defined in device_copy.cc.
namespace lockstep {

/// Returns true if any link of this process is staged, or copies have a hook.
/// Otherwise the functions of device_copy.h only call LibTorch's.
bool has_special_links();

/// Makes the direct copies over some links in place of LibTorch.
struct CopyHook {
  std::function<bool(const Link& link)> applies_to;
  /// `libtorch_copy()` writes `destination`, which is dense.
  std::function<void(const Link& link, torch::Tensor& destination,
                     const std::function<void()>& libtorch_copy)>
      copy;
};

/// Sets the hook of this process, or removes it. Also forgets which links were
/// checked and the paths that were set for them. Only test programs call this:
/// they break links between slices, which share memory, so that their copies
/// can't fail.
void set_copy_hook(std::optional<CopyHook> hook);
bool has_copy_hook();

/// Calls the hook if it applies to `link`. Otherwise calls `libtorch_copy()`.
void copy_directly(const Link& link, torch::Tensor& destination,
                   const std::function<void()>& libtorch_copy);

}  // namespace lockstep
