#pragma once

#include <cstdint>
#include <vector>

namespace lockstep::data {

/// Pixels in rows from the top. Each has three bytes: red, green, blue.
struct Image {
  int64_t width = 0;
  int64_t height = 0;
  std::vector<uint8_t> pixels;
};

/// Most pixels of an image that is decoded. A file of a few kilobytes may claim
/// to be an image of gigabytes. The largest photograph in ImageNet has 61
/// million.
inline constexpr int64_t kMostPixels = 100'000'000;

}  // namespace lockstep::data
