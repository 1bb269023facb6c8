#pragma once

#include <cstdint>
#include <span>
#include <string>

#include "lockstep/data/images/image.h"

namespace lockstep::data {

/// Decodes a JPEG or PNG file, whatever its name ends with, to the pixels that
/// Pillow's Image.open(path).convert("RGB") has. (16-bit grayscale is the one
/// exception: decode_png.h.) What a file says of colour profiles, gamma and
/// orientation is left out, as Pillow does.
///
/// Throws DataError naming `path` if the bytes are something else, damaged,
/// not complete, or of more than kMostPixels.
Image decode_image(std::span<const uint8_t> bytes, const std::string& path);

/// Reads and decodes a file. Throws DataError also if it can't be read.
Image read_image(const std::string& path);

}  // namespace lockstep::data
