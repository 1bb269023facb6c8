#pragma once

#include <cstdint>
#include <vector>

#include "lockstep/data/dataset.h"

namespace lockstep::data {

/// Returns the bytes of image `index`.
inline std::vector<uint8_t> image_of(const Dataset& dataset, int64_t index) {
  std::vector<uint8_t> image(dataset.image_bytes());
  dataset.read(index, image);
  return image;
}

}  // namespace lockstep::data
