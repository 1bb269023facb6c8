#pragma once

#include <cstdint>
#include <memory>

#include "lockstep/data/dataset.h"

namespace lockstep::data {

/// Makes procedural 32x32 images of 10 shapes and patterns: disk, ring, square,
/// frame, triangle, plus, cross, horizontal and vertical stripes, checkers.
/// Place, size, angle, phase, colours, light and noise are random. The figure
/// is brighter than its ground. A mirrored image has the same class.
///
/// Image i depends only on (seed, split, i), bit for bit on every machine.
/// There are `samples` images for training (0: 10,000), and a fifth of that for
/// testing. Throws InvalidArgument unless samples is in 0..1,000,000.
std::shared_ptr<const Dataset> synthetic(uint64_t seed, int64_t samples,
                                         Split split);

}  // namespace lockstep::data
