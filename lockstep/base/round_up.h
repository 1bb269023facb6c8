#pragma once

namespace lockstep {

/// The least multiple of `unit` that is not below `value`; both at least 0.
template <class Integer>
constexpr Integer round_up(Integer value, Integer unit) {
  return (value + unit - 1) / unit * unit;
}

}  // namespace lockstep
