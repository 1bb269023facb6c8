#pragma once

#include <optional>

#include <c10/core/Device.h>
#include <c10/core/ScalarType.h>

namespace lockstep {

/// While it lives, this thread computes with `type` (kBFloat16 or kHalf) what
/// torch.autocast computes with it on such devices: matrix products,
/// convolutions, attention. Without a type it computes as the operands are. At
/// its end the copies of weights in that type are dropped. Scopes nest.
///
/// Put it around forward and loss. A train_step() takes the state of its caller
/// along to the threads of its devices, and leaves it out in the backward.
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

/// Whether this thread computes so, on any kind of device.
bool has_autocast();

/// Drops the copies of weights in smaller types, after the weights changed.
void drop_cast_weights();

}  // namespace lockstep
