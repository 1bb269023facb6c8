#pragma once

#include <optional>

#include <torch/types.h>

#include "lockstep/device/device.h"
#include "lockstep/device/links/link.h"

// Training copies between devices only with these functions, so that a link
// that changes data can be avoided.
namespace lockstep {

/// Path of a copy from one device to another.
enum class CopyPath {
  kDirect,  ///< as LibTorch copies: between GPUs peer to peer if possible
  kStaged,  ///< through memory of the host
};

/// Sets the path of copies over `link` in this process from now on.
void set_copy_path(const Link& link, CopyPath path);
/// Returns nullopt if no path was set. Copies are then direct.
std::optional<CopyPath> chosen_path(const Link& link);
/// Forgets all paths that were set.
void forget_copy_paths();

/// Returns `tensor` on `device`: itself if it is there already, or a copy. The
/// tensor may have been made in another stream, and may be freed before the
/// copy has run.
torch::Tensor to_device(const torch::Tensor& tensor, const Device& device);

/// Does destination.copy_(source) over `link`.
void copy_over(const Link& link, torch::Tensor& destination,
               const torch::Tensor& source);

/// Returns the device of the memory of `tensor`. Memory that is in no slice's
/// account counts as cpu:0's.
Device place_of(const torch::Tensor& tensor);

}  // namespace lockstep
