#pragma once

#include <cstdint>
#include <optional>
#include <vector>

#include <ATen/core/Tensor.h>
#include <c10/core/Device.h>
#include <c10/core/DispatchKeySet.h>
#include <c10/core/ScalarType.h>
#include <c10/core/impl/LocalDispatchKeySet.h>

namespace lockstep {

/// While a scope exists, this thread computes with `type` (kBFloat16 or kHalf)
/// the operators that torch.autocast computes with it on such devices: matrix
/// products, convolutions, attention. Without a type, autocast is off. The
/// destructor drops the copies of weights in that type. Scopes nest. The first
/// one of a process warns if has_slow_bfloat16().
///
/// Put it around the forward pass and the loss. A train_step() applies the
/// state of its caller on the threads of its devices, except during the
/// backward.
class AutocastScope {
 public:
  AutocastScope(c10::DeviceType device, std::optional<c10::ScalarType> type);
  ~AutocastScope();
  AutocastScope(const AutocastScope&) = delete;
  AutocastScope& operator=(const AutocastScope&) = delete;

 private:
  const c10::DeviceType device_;
  bool was_on_ = false;
  c10::ScalarType outer_type_ = c10::ScalarType::Float;
};

/// While it exists, autocast is off in this thread, and autocast_type() returns
/// nothing. Unlike an AutocastScope, it keeps the copies of weights.
class NoAutocast {
 public:
  NoAutocast() : guard_(c10::autocast_dispatch_keyset) {}

 private:
  const c10::impl::ExcludeDispatchKeyGuard guard_;
};

/// Returns true if autocast is on in this thread, for any kind of device.
bool has_autocast();

/// Returns the type in which autocast computes on `device` in this thread, or
/// nothing if it is off.
std::optional<c10::ScalarType> autocast_type(c10::DeviceType device);

/// Returns true on an x86 CPU with neither AMX nor AVX512_BF16, or where
/// ONEDNN_MAX_CPU_ISA keeps LibTorch from using them. There LibTorch's products
/// of bfloat16 are slower than those of float32: up to 18 times (AVX2).
bool has_slow_bfloat16();

/// Returns `x` in the type of autocast on its device, with a graph, as the
/// operators that autocast casts take it.
at::Tensor cast_for_products(const at::Tensor& x);

/// Drops the copies of weights in smaller types. Call it when the weights have
/// changed.
void drop_cast_weights();

/// Notices weights that changed within an AutocastScope, such as one around a
/// whole loop.
class CastWatch {
 public:
  /// Drops the copies of weights if one of `weights` was written to or moved
  /// since the last call. Reading weights on an accelerator would take too
  /// long, so each call with grad mode drops their copies. Does nothing without
  /// autocast. Call it before a forward.
  void follow(const std::vector<at::Tensor>& weights);

 private:
  std::optional<uint64_t> seen_;
};

}  // namespace lockstep
