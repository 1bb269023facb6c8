#pragma once

#include <vector>

#include <torch/csrc/distributed/c10d/Backend.hpp>
#include <torch/csrc/distributed/c10d/Store.hpp>
#include <torch/headeronly/version.h>

/// Differences between the c10d::Backend of the supported versions of LibTorch.
/// No other file of this layer checks the version.

namespace lockstep {

#if TORCH_VERSION_MAJOR > 2 || TORCH_VERSION_MINOR >= 15
using TorchBackend = c10d::Backend;
/// c10d's Reducer uses a bucket of complex gradients as one of real numbers,
/// but makes the view only if it has allocated the bucket itself.
inline constexpr bool kComplexBucketsAreReal = true;
#else
/// A backend with the functions that c10d calls from 2.15 on.
class TorchBackend : public c10d::Backend {
 public:
  using Backend::Backend;
  virtual bool supportsSplitting() const { return false; }
  virtual c10::intrusive_ptr<Backend> split(
      const c10::intrusive_ptr<c10d::Store>& /*store*/,
      const std::vector<int>& /*ranks*/,
      const c10::intrusive_ptr<Options>& /*options*/) {
    return nullptr;
  }
};
inline constexpr bool kComplexBucketsAreReal = false;
#endif

}  // namespace lockstep
