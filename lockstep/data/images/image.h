#pragma once

#include <cstdint>
#include <vector>

namespace lockstep::data {

/// Pixels in rows from the top, three bytes each: red, green, blue.
struct Image {
  int64_t width = 0;
  int64_t height = 0;
  std::vector<uint8_t> pixels;
};

/// More pixels than this are refused before they are decoded: a file of a few
/// kilobytes may claim to be an image of gigabytes. The largest photograph of
/// ImageNet has 61 million.
inline constexpr int64_t kMostPixels = 100'000'000;

}  // namespace lockstep::data
