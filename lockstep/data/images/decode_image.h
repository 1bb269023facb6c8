#pragma once

#include <cstdint>
#include <span>
#include <string>

#include "lockstep/data/images/image.h"

namespace lockstep::data {

/// Decodes a JPEG or PNG file, whatever its file name, to the pixels of
/// Pillow's Image.open(path).convert("RGB"). (16-bit grayscale is the one
/// exception: see decode_png().) Colour profiles, gamma and orientation are
/// ignored, as in Pillow.
///
/// Throws DataError naming `path` if the bytes are something else, are damaged
/// or incomplete, or have more than kMaxPixels.
Image decode_image(std::span<const uint8_t> bytes, const std::string& path);

/// Reads and decodes a file. Also throws DataError if it can't be read.
Image read_image(const std::string& path);

/// Decodes a JPEG as decode_image() does. It may be baseline or progressive,
/// and gray, in colour or CMYK. Uses libjpeg-turbo with Pillow's settings: the
/// accurate integer DCT, and smooth upsampling of chroma. CMYK becomes RGB as
/// in Pillow, without a colour profile. Stray bytes between markers are
/// skipped, as in other decoders. Data that end early or can't be decoded are
/// an error.
Image decode_jpeg(std::span<const uint8_t> bytes, const std::string& path);

/// Decodes a PNG as decode_image() does, with libpng. Alpha and transparent
/// colours are dropped, not blended. The higher eight of 16 bits are kept.
/// Pillow does the same for colours, but makes all 16-bit grayscale values
/// above 255 white.
Image decode_png(std::span<const uint8_t> bytes, const std::string& path);

/// The file that a decoder reads, for its errors.
struct ImageFile {
  const char* format;  ///< "JPEG"
  const std::string& path;
  size_t bytes;

  [[noreturn]] void refuse(const std::string& why) const;
  /// Returns an image of that size, to be filled in. Throws DataError if it has
  /// more than kMaxPixels, or if the file is too small for it (`fits`).
  Image allocate(int64_t width, int64_t height, bool fits) const;
};

}  // namespace lockstep::data
