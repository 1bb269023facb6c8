#pragma once

#include <cstdint>
#include <span>
#include <string>

#include "lockstep/data/images/image.h"

namespace lockstep::data {

/// Decodes a JPEG as decode_image() does. It may be baseline or progressive,
/// and gray, in colour or CMYK. Uses libjpeg-turbo with Pillow's settings: the
/// accurate integer DCT, and smooth upsampling of chroma. CMYK becomes RGB as
/// in Pillow, without a colour profile. Stray bytes between markers are
/// skipped, as in other decoders. Data that end early or can't be decoded are
/// an error.
Image decode_jpeg(std::span<const uint8_t> bytes, const std::string& path);

}  // namespace lockstep::data
