#include "lockstep/data/sample_writer.h"

#include <algorithm>

#include "lockstep/data/random_stream.h"

namespace lockstep::data {

Augmentation random_augmentation(uint64_t seed, int64_t epoch, int64_t index) {
  RandomStream random(
      StreamUse::kAugmentation,
      {seed, static_cast<uint64_t>(epoch), static_cast<uint64_t>(index)});
  Augmentation result;
  result.down = random.below(2 * Augmentation::kPadding + 1);
  result.right = random.below(2 * Augmentation::kPadding + 1);
  result.is_mirrored = random.below(2) == 1;
  return result;
}

SampleWriter::SampleWriter(const Dataset& dataset, PixelOrder order)
    : height_(dataset.height()),
      width_(dataset.width()),
      tables_(static_cast<size_t>(dataset.channels())) {
  const int64_t channels = dataset.channels();
  const bool is_pixels = order == PixelOrder::kPixels;
  pixel_stride_ = is_pixels ? channels : 1;
  row_stride_ = width_ * pixel_stride_;
  channel_stride_ = is_pixels ? 1 : height_ * width_;
  for (size_t c = 0; c < tables_.size(); ++c) {
    for (size_t value = 0; value < tables_[c].size(); ++value) {
      // Same order of operations as in torchvision's ToTensor and Normalize,
      // for the same bits.
      tables_[c][value] =
          (static_cast<float>(value) / 255.0f - dataset.mean()[c]) /
          dataset.stddev()[c];
    }
  }
}

void SampleWriter::write(std::span<const uint8_t> image,
                         const Augmentation& augmentation,
                         std::span<float> out) const {
  const int64_t down = augmentation.down - Augmentation::kPadding;
  const int64_t right = augmentation.right - Augmentation::kPadding;
  const int64_t plane = height_ * width_;
  for (int64_t c = 0; c < static_cast<int64_t>(tables_.size()); ++c) {
    const Table& table = tables_[static_cast<size_t>(c)];
    for (int64_t y = 0; y < height_; ++y) {
      const int64_t from = y + down;
      const bool is_inside = from >= 0 && from < height_;
      const uint8_t* row =
          is_inside ? image.data() + c * plane + from * width_ : nullptr;
      write_row(row, table, right, augmentation.is_mirrored,
                out.data() + c * channel_stride_ + y * row_stride_);
    }
  }
}

// Writes a row of the result, which begins at column `first` of `row`. A null
// `row` means all padding.
void SampleWriter::write_row(const uint8_t* row, const Table& table,
                             int64_t first, bool is_mirrored,
                             float* out) const {
  const int64_t step = is_mirrored ? -pixel_stride_ : pixel_stride_;
  if (is_mirrored) out += (width_ - 1) * pixel_stride_;
  const int64_t begin = row ? std::clamp<int64_t>(-first, 0, width_) : width_;
  const int64_t end = row ? std::clamp<int64_t>(width_ - first, 0, width_) : 0;
  int64_t x = 0;
  for (; x < begin; ++x) out[x * step] = table[0];
  for (; x < end; ++x) out[x * step] = table[row[x + first]];
  for (; x < width_; ++x) out[x * step] = table[0];
}

}  // namespace lockstep::data
