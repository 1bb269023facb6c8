#pragma once

#include <cstdint>
#include <memory>

#include "lockstep/data/dataset.h"

namespace lockstep::data {

/// Procedural 32x32 images of 10 shapes and patterns: disk, ring, square,
/// frame, triangle, plus, cross, horizontal and vertical stripes, checkers.
/// Place, size, angle, phase, colours, light and noise are random; the figure
/// is brighter than its ground. A mirrored image is of the same class.
///
/// Image i depends on (seed, split, i) alone, bit for bit on every machine.
/// `samples` images to train on (0: 10,000), a fifth of that to test.
/// Throws InvalidArgument unless samples is in 0..1,000,000.
std::shared_ptr<const Dataset> synthetic(uint64_t seed, int64_t samples,
                                         Split split);

}  // namespace lockstep::data
