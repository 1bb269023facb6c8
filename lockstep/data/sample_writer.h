#pragma once

#include <array>
#include <cstdint>
#include <span>
#include <vector>

#include "lockstep/data/dataset.h"

namespace lockstep::data {

/// A change to an image, as by torchvision's RandomCrop(padding=4) and
/// RandomHorizontalFlip: the padded image is cut `down` and `right` of its
/// corner, then mirrored.
struct Augmentation {
  static constexpr int64_t kPadding = 4;

  int64_t down = kPadding;
  int64_t right = kPadding;
  bool is_mirrored = false;
};

/// Returns the change for sample `index`. It depends only on these arguments.
Augmentation random_augmentation(uint64_t seed, int64_t epoch, int64_t index);

enum class PixelOrder {
  kPlanes,  ///< C, H, W in memory
  kPixels,  ///< H, W, C in memory, for channels_last
};

/// Turns images into normalised floats: scaled to 0..1, minus the mean, divided
/// by the standard deviation. Black is padded before that, as in torchvision.
class SampleWriter {
 public:
  SampleWriter(const Dataset& dataset, PixelOrder order);

  /// `out` has C*H*W elements.
  void write(std::span<const uint8_t> image, const Augmentation& augmentation,
             std::span<float> out) const;

 private:
  using Table = std::array<float, 256>;

  void write_row(const uint8_t* row, const Table& table, int64_t first,
                 bool is_mirrored, float* out) const;

  int64_t height_;
  int64_t width_;
  int64_t row_stride_;  ///< in elements of the output
  int64_t pixel_stride_;
  int64_t channel_stride_;
  std::vector<Table> tables_;  ///< the float of each byte, by channel
};

}  // namespace lockstep::data
