#pragma once

#include <cstdint>
#include <span>

#include "lockstep/data/images/image.h"

namespace lockstep::data {

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
