#include "lockstep/data/image_source.h"

#include <utility>

#include <fmt/format.h>
#include <torch/torch.h>

#include "lockstep/base/checksum.h"
#include "lockstep/base/error.h"

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
      writer_(*dataset_, options.channels_last ? PixelOrder::kPixels
                                               : PixelOrder::kPlanes) {}

// Plain loops and no operators of ATen's: its threads are for the training.
Batch ImageSource::read(std::span<const int64_t> indices, int64_t epoch) const {
  const auto count = static_cast<int64_t>(indices.size());
  const int64_t elements =
      dataset_->channels() * dataset_->height() * dataset_->width();
  const torch::Tensor images = torch::empty(
      {count, dataset_->channels(), dataset_->height(), dataset_->width()},
      torch::TensorOptions(torch::kFloat32)
          .memory_format(options_.channels_last
                             ? torch::MemoryFormat::ChannelsLast
                             : torch::MemoryFormat::Contiguous));
  const torch::Tensor labels = torch::empty({count}, torch::kInt64);
  auto* out = images.data_ptr<float>();
  auto* label = labels.data_ptr<int64_t>();
  for (const int64_t index : indices) {
    const Augmentation augmentation =
        options_.augment ? random_augmentation(options_.seed, epoch, index)
                         : Augmentation{};
    writer_.write(dataset_->image(index), augmentation,
                  std::span(out, static_cast<size_t>(elements)));
    *label++ = dataset_->label(index);
    out += elements;
  }
  return {.inputs = {images}, .target = labels, .samples = count};
}

std::string ImageSource::fingerprint() const {
  Sha256 digest;
  digest.add(fmt::format("{} x {},{},{} of {};", dataset_->size(),
                         dataset_->channels(), dataset_->height(),
                         dataset_->width(), dataset_->classes()));
  for (int64_t i = 0; i < dataset_->size(); ++i) {
    const int64_t label = dataset_->label(i);
    digest.add(std::as_bytes(std::span(&label, 1)));
    digest.add(std::as_bytes(dataset_->image(i)));
  }
  return digest.hex();
}

}  // namespace lockstep::data
