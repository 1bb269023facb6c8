#include "lockstep/transport/reduction.h"

namespace lockstep::transport {

void scale(std::span<std::byte> data, const Reduction& reduction) {
  const std::byte* const input = data.data();
  if (data.empty()) return;
  reduction.combine_scaled({&input, 1}, {&reduction.factor, 1}, data.data(),
                           data.size() / reduction.element_bytes);
}

}  // namespace lockstep::transport
