#pragma once

#include <cstddef>
#include <functional>
#include <span>

namespace lockstep::transport {

/// A reduction. combine() computes `output[i]` from inputs[r][i] of every rank
/// r, for i < `elements`. `output` may be one of the inputs. The result for an
/// element must not depend on its position, because ranks reduce different
/// parts.
struct Reduction {
  using Inputs = std::span<const std::byte* const>;

  size_t element_bytes = 1;  ///< a power of two up to 64
  std::function<void(Inputs inputs, std::byte* output, size_t elements)>
      combine;
  /// Works as combine(), but on `factors[r] * inputs[r]`. Empty if the data is
  /// not scaled.
  std::function<void(Inputs inputs, std::span<const double> factors,
                     std::byte* output, size_t elements)>
      combine_scaled;
  double factor = 1;  ///< this rank's factor for combine_scaled()
};

/// Multiplies this rank's data by its factor, in place. A reduction with
/// combine_scaled() needs this before all algorithms except
/// shm::all_reduce_shared().
void scale(std::span<std::byte> data, const Reduction& reduction);

}  // namespace lockstep::transport
