#include "lockstep/data/image_source.h"

#include <utility>
#include <vector>

#include <torch/types.h>

#include "lockstep/base/error.h"
#include "lockstep/data/sample_writer.h"

namespace lockstep::data {
namespace {

std::shared_ptr<const Dataset> checked(std::shared_ptr<const Dataset> dataset) {
  if (dataset != nullptr) return dataset;
  throw InvalidArgument("data", {.code = ErrorCode::kMisuse,
                                 .what = "there is nothing to load",
                                 .expected = "a dataset",
                                 .got = "a null pointer"});
}

}  // namespace

ImageSource::ImageSource(std::shared_ptr<const Dataset> dataset,
                         const ImageOptions& options)
    : dataset_(checked(std::move(dataset))),
      options_(options),
      writer_(std::make_unique<SampleWriter>(
          *dataset_, options.channels_last() ? PixelOrder::kPixels
                                             : PixelOrder::kPlanes)) {}

ImageSource::~ImageSource() = default;

// Uses plain loops instead of ATen operators, whose threads are for the
// training.
Batch ImageSource::read(std::span<const int64_t> indices, int64_t epoch) const {
  const auto count = static_cast<int64_t>(indices.size());
  const int64_t elements =
      dataset_->channels() * dataset_->height() * dataset_->width();
  const torch::Tensor images = torch::empty(
      {count, dataset_->channels(), dataset_->height(), dataset_->width()},
      torch::TensorOptions(torch::kFloat32)
          .memory_format(options_.channels_last()
                             ? torch::MemoryFormat::ChannelsLast
                             : torch::MemoryFormat::Contiguous));
  const torch::Tensor labels = torch::empty({count}, torch::kInt64);
  auto* out = images.data_ptr<float>();
  auto* label = labels.data_ptr<int64_t>();
  std::vector<uint8_t> image(dataset_->image_bytes());
  for (const int64_t index : indices) {
    Augmentation augmentation =
        options_.augment() ? random_augmentation(options_.seed(), epoch, index)
                           : Augmentation{};
    if (!dataset_->may_be_mirrored()) augmentation.is_mirrored = false;
    dataset_->read(index, image);
    writer_->write(image, augmentation,
                   std::span(out, static_cast<size_t>(elements)));
    *label++ = dataset_->label(index);
    out += elements;
  }
  return {.data = images, .target = labels, .samples = count};
}

std::string ImageSource::fingerprint() const { return dataset_->fingerprint(); }

}  // namespace lockstep::data
