#pragma once

#include <cstdint>
#include <span>

#include "lockstep/data/random_stream.h"

namespace lockstep::data {

inline constexpr int kFigureClasses = 10;
inline constexpr int kFigureSide = 32;
inline constexpr int kFigureBytes = 3 * kFigureSide * kFigureSide;

/// Paints a 32x32 image (3 planes) of class `label` of those that synthetic.h
/// lists; all else about it is drawn from `random`.
void paint_figure(RandomStream& random, int label, std::span<uint8_t> out);

}  // namespace lockstep::data
