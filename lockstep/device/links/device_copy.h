#pragma once

#include <functional>
#include <optional>

#include <torch/types.h>

#include "lockstep/device/device.h"
#include "lockstep/device/links/link.h"

// Training copies between devices by these functions alone, so that a link
// which changes what goes over it can be gone around.
namespace lockstep {

/// How a copy goes from one device to another.
enum class CopyPath {
  kDirect,  ///< as LibTorch copies: between GPUs peer to peer where they can
  kStaged,  ///< through memory of the host
};

/// How bytes go over `link` in this process from now on.
void set_copy_path(const Link& link, CopyPath path);
/// Nothing if nobody chose: directly.
std::optional<CopyPath> chosen_path(const Link& link);
/// As if nobody had chosen.
void forget_copy_paths();

torch::Device torch_device(const Device& device);

/// `tensor` where `device` can use it: itself, or a copy.
torch::Tensor to_device(const torch::Tensor& tensor, const Device& device);

/// destination.copy_(source), over `link`.
void copy_over(const Link& link, torch::Tensor& destination,
               const torch::Tensor& source);

/// Whether any link of this process goes another way than directly, or has a
/// fault: if not, the functions above are LibTorch's.
bool has_special_links();

/// Where the memory of `tensor` is. Memory of no slice's account counts as
/// cpu:0's.
Device place_of(const torch::Tensor& tensor);

/// `copy()` with the faults of `link`: it copies directly to `destination`,
/// which is dense.
void with_faults(const Link& link, torch::Tensor& destination,
                 const std::function<void()>& copy);

}  // namespace lockstep
