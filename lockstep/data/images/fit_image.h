#pragma once

#include <cstdint>
#include <span>

#include "lockstep/data/images/image.h"

namespace lockstep::data {

/// Makes `image` a square of `side` x `side` pixels, as torchvision's
/// Resize(side) and CenterCrop(side) make it of Pillow's images: the shorter
/// side becomes `side`, and the middle of the longer one is kept. `out` gets
/// the three planes: 3 * side * side bytes.
///
/// Resizes by Pillow's bilinear filter: a triangle that is as wide as what one
/// new pixel covers, so that nothing is skipped when an image gets smaller;
/// across first, then down, with weights in whole multiples of 2^-22 and
/// rounding to bytes after each. As the sums are of integers, the bytes are
/// the same on every machine. Pillow's are the same where it goes across first,
/// too; it goes down first where that costs less, and a byte may then be one
/// more or one less.
void fit_image(const Image& image, int64_t side, std::span<uint8_t> out);

}  // namespace lockstep::data
