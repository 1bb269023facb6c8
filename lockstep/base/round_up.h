#pragma once

namespace lockstep {

/// Returns the least multiple of `unit` that is at least `value`. Requires
/// `value` >= 0 and `unit` > 0.
template <class Integer>
constexpr Integer round_up(Integer value, Integer unit) {
  return (value + unit - 1) / unit * unit;
}

}  // namespace lockstep
