#include "lockstep/device/autocast.h"

#include <algorithm>

#include <ATen/autocast_mode.h>

namespace lockstep {

AutocastScope::AutocastScope(c10::DeviceType device,
                             std::optional<c10::ScalarType> type)
    : device_(device),
      was_on_(at::autocast::is_autocast_enabled(device)),
      outer_type_(at::autocast::get_autocast_dtype(device)) {
  at::autocast::set_autocast_enabled(device_, type.has_value());
  if (type) at::autocast::set_autocast_dtype(device_, *type);
}

AutocastScope::~AutocastScope() {
  at::autocast::set_autocast_enabled(device_, was_on_);
  at::autocast::set_autocast_dtype(device_, outer_type_);
  drop_cast_weights();
}

bool has_autocast() {
  const auto& types = at::autocast::_AUTOCAST_SUPPORTED_DEVICES;
  return std::any_of(types.begin(), types.end(),
                     &at::autocast::is_autocast_enabled);
}

std::optional<c10::ScalarType> autocast_type(c10::DeviceType device) {
  if (!at::autocast::is_autocast_enabled(device)) return std::nullopt;
  return at::autocast::get_autocast_dtype(device);
}

at::Tensor cast_for_products(const at::Tensor& x) {
  const auto device = x.device().type();
  const auto type = autocast_type(device);
  return type ? at::autocast::cached_cast(*type, x, device) : x;
}

void drop_cast_weights() { at::autocast::clear_cache(); }

}  // namespace lockstep
