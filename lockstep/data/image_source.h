#pragma once

#include <cstdint>
#include <memory>
#include <string>

#include <torch/arg.h>

#include "lockstep/data/batch_source.h"
#include "lockstep/data/dataset.h"

namespace lockstep::data {

class SampleWriter;

/// Options for preparing images for training.
struct ImageOptions {
  /// Random crop (padding 4) and, if the dataset allows it, horizontal flip.
  TORCH_ARG(bool, augment) = false;
  TORCH_ARG(bool, channels_last) = false;
  /// Seed of the augmentation.
  TORCH_ARG(uint64_t, seed) = 0;
};

/// Makes batches of a dataset of images: data (N, C, H, W), float32 and
/// normalised, and a target (N), int64. Sample `index` depends only on
/// (seed, epoch, index).
class ImageSource : public BatchSource {
 public:
  /// Throws InvalidArgument without a dataset.
  explicit ImageSource(std::shared_ptr<const Dataset> dataset,
                       const ImageOptions& options = {});
  ~ImageSource() override;

  int64_t size() const override { return dataset_->size(); }
  std::string sample_name() const override { return dataset_->sample_name(); }
  Batch read(std::span<const int64_t> indices, int64_t epoch) const override;
  /// Returns the fingerprint of the dataset.
  std::string fingerprint() const override;
  const void* object_of_one_thread() const override { return nullptr; }

 private:
  std::shared_ptr<const Dataset> dataset_;
  ImageOptions options_;
  std::unique_ptr<const SampleWriter> writer_;
};

}  // namespace lockstep::data
