#pragma once

#include <cstdint>
#include <span>
#include <string>

#include "lockstep/data/images/image.h"

namespace lockstep::data {

/// decode_image() of a JPEG, baseline or progressive, gray, in colours or
/// CMYK, by libjpeg-turbo in the settings that Pillow has: the accurate integer
/// DCT, and chroma smoothed as it is enlarged. CMYK becomes RGB as by Pillow,
/// without a colour profile. Stray bytes between markers are
/// passed over, as everyone does; data that end early or don't decode are an
/// error.
Image decode_jpeg(std::span<const uint8_t> bytes, const std::string& path);

}  // namespace lockstep::data
