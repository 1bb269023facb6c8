#pragma once

#include <cstddef>
#include <cstdint>
#include <functional>
#include <span>
#include <vector>

#include <ATen/core/ivalue.h>
#include <torch/types.h>

#include "lockstep/device/device.h"
#include "lockstep/parallel/module/module_handle.h"
#include "lockstep/parallel/reduction/owned_gradient.h"

namespace lockstep {

/// Memory of a replica's parameters or buffers.
enum class Storage {
  kShared,  ///< the original's memory, where the device can use it
  kOwn,
};

/// Copies of parameters in a smaller type, in memory that all replicas use.
struct ParameterCasts {
  /// One for each unique parameter of the original, undefined for a parameter
  /// without a copy. Empty if no parameter has a copy.
  std::span<const torch::Tensor> copies{};
  /// Index among the unique parameters for each parameter of the original.
  std::span<const size_t> unique{};
  /// Returns the copy of parameter `i` of the original.
  torch::Tensor of(size_t i) const {
    return copies.empty() ? torch::Tensor() : copies[unique[i]];
  }
};

/// A copy of a module on a device. Its parameters are separate leaves: a
/// backward through a replica leaves gradients there, not in the original.
class Replica {
 public:
  /// `module` was cloned from, or built like, the `original`. Throws
  /// InvalidArgument naming the first parameter, buffer or submodule that
  /// differs.
  Replica(ModuleHandle module, const ModuleHandle& original,
          const Device& device, Storage parameters, Storage buffers);

  /// Updates parameters, requires_grad, modes and the options of torch::nn's
  /// modules from the original. Shares storage again if the original's storage
  /// was replaced. Copies parameters that have their own memory every time,
  /// because an optimizer may write to the original without a trace.
  /// Uses the given `casts` of parameters in their place.
  void refresh(const ModuleHandle& original, const ParameterCasts& casts = {});
  /// Same, unless it was already done for this `forward`, a number that only
  /// grows.
  void refresh_for(int64_t forward, const ModuleHandle& original,
                   const ParameterCasts& casts = {});
  /// Copies `source`, the values of the buffers, to buffers that are not
  /// shared.
  void set_buffers(const std::vector<torch::Tensor>& source);

  /// Takes the gradients that a backward left, one for each of the `count`
  /// unique parameters of the original. `unique[i]` is the index of parameter i
  /// among them.
  std::vector<OwnedGradient> take_gradients(const std::vector<size_t>& unique,
                                            size_t count);
  /// Drops the gradients of an unfinished backward.
  void drop_gradients();

  const Device& device() const { return device_; }
  const ModuleHandle& module() const { return module_; }

 private:
  void place(torch::Tensor& copy, const torch::Tensor& original,
             Storage storage) const;

  ModuleHandle module_;
  Device device_;
  Storage parameters_;
  Storage buffers_;
  std::vector<std::function<void()>> option_followers_;
  int64_t refreshed_for_ = -1;
};

}  // namespace lockstep
