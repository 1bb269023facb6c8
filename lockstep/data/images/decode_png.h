#pragma once

#include <cstdint>
#include <span>
#include <string>

#include "lockstep/data/images/image.h"

namespace lockstep::data {

/// Decodes a PNG as decode_image() does, with libpng. Alpha and transparent
/// colours are dropped, not blended. The higher eight of 16 bits are kept.
/// Pillow does the same for colours, but makes all 16-bit grayscale values
/// above 255 white.
Image decode_png(std::span<const uint8_t> bytes, const std::string& path);

}  // namespace lockstep::data
