#pragma once

#include <cstdint>
#include <memory>
#include <string>

#include "lockstep/data/batch_source.h"
#include "lockstep/data/dataset.h"
#include "lockstep/data/sample_writer.h"

namespace lockstep::data {

/// Options for preparing images for training.
struct ImageOptions {
  /// Random crop (padding 4) and, if the dataset allows it, horizontal flip.
  bool augment = false;
  bool channels_last = false;
  uint64_t seed = 0;  ///< seed of the augmentation
};

/// Makes batches of a dataset of images: one input (N, C, H, W), float32 and
/// normalised, and a target (N), int64. Sample `index` depends only on
/// (seed, epoch, index).
class ImageSource : public BatchSource {
 public:
  /// Throws InvalidArgument without a dataset.
  ImageSource(std::shared_ptr<const Dataset> dataset,
              const ImageOptions& options);

  int64_t size() const override { return dataset_->size(); }
  Batch read(std::span<const int64_t> indices, int64_t epoch) const override;
  /// Returns the fingerprint of the dataset.
  std::string fingerprint() const override;

 private:
  std::shared_ptr<const Dataset> dataset_;
  ImageOptions options_;
  SampleWriter writer_;
};

}  // namespace lockstep::data
