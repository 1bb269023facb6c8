#pragma once

#include <cstdint>
#include <span>
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
inline constexpr int64_t kMaxPixels = 100'000'000;

/// Makes `image` a square of `side` x `side` pixels, as torchvision's
/// Resize(side) and CenterCrop(side) do with Pillow's images: the shorter side
/// becomes `side`, and the middle of the longer one is kept. `out` gets the
/// three planes: 3 * side * side bytes.
///
/// Uses Pillow's bilinear filter: a triangle as wide as the area that a new
/// pixel covers, so that no pixel is skipped when an image gets smaller. It
/// resizes across, then down, with weights in multiples of 2^-22, and rounds to
/// bytes after each pass. The sums are of integers, so the bytes are the same
/// on every machine. They equal Pillow's where Pillow resizes across first.
/// If that costs more, Pillow resizes down first, and a byte may differ by
/// one.
void fit_image(const Image& image, int64_t side, std::span<uint8_t> out);

}  // namespace lockstep::data
