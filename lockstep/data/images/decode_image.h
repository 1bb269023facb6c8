#pragma once

#include <cstdint>
#include <span>
#include <string>

#include "lockstep/data/images/image.h"

namespace lockstep::data {

/// Decodes a JPEG or PNG file, whatever its file name, to the pixels of
/// Pillow's Image.open(path).convert("RGB"). (16-bit grayscale is the one
/// exception: see decode_png.h.) Colour profiles, gamma and orientation are
/// ignored, as in Pillow.
///
/// Throws DataError naming `path` if the bytes are something else, are damaged
/// or incomplete, or have more than kMostPixels.
Image decode_image(std::span<const uint8_t> bytes, const std::string& path);

/// Reads and decodes a file. Also throws DataError if it can't be read.
Image read_image(const std::string& path);

}  // namespace lockstep::data
