#pragma once

#include <cstdint>
#include <span>
#include <string>

#include "lockstep/data/images/image.h"

namespace lockstep::data {

/// decode_image() of a PNG, by libpng. Alpha and transparent colours are left
/// out, not blended. Of 16 bits the higher eight are kept: as Pillow does for
/// colours, whereas of 16-bit grayscale it makes white all that is above 255.
Image decode_png(std::span<const uint8_t> bytes, const std::string& path);

}  // namespace lockstep::data
