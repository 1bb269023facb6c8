#include "lockstep/data/dataset.h"

#include <fmt/format.h>

#include "lockstep/base/checksum.h"
#include "lockstep/base/error.h"
#include "lockstep/base/text.h"
#include "lockstep/data/datasets.h"

namespace lockstep::data {

void Dataset::read(int64_t index, std::span<uint8_t> out) const {
  check_index(index);
  if (out.size() != image_bytes()) {
    throw InvalidArgument(
        "data",
        {.code = ErrorCode::kMisuse,
         .what = fmt::format("image {} can't be read", index),
         .expected = fmt::format("{} bytes to write it to", image_bytes()),
         .got = fmt::format("{}", out.size())});
  }
  read_checked(index, out);
}

int64_t Dataset::label(int64_t index) const {
  check_index(index);
  return label_of(index);
}

void Dataset::check_index(int64_t index) const {
  if (index >= 0 && index < size()) return;
  throw InvalidArgument(
      "data",
      {.code = ErrorCode::kMisuse,
       .what = fmt::format("the dataset has no image {}", index),
       .expected = fmt::format("an index from 0 to {}", size() - 1),
       .fix = "take the index modulo size() to continue with the next epoch"});
}

std::string Dataset::fingerprint() const {
  Sha256 digest;
  digest.add(fmt::format("{} x {},{},{} of {};", size(), channels_, height_,
                         width_, classes_));
  std::vector<uint8_t> image(image_bytes());
  for (int64_t i = 0; i < size(); ++i) {
    const int64_t class_number = label(i);
    digest.add(std::as_bytes(std::span(&class_number, 1)));
    read(i, image);
    digest.add(std::as_bytes(std::span(image)));
  }
  return digest.hex();
}

const std::vector<std::string>& dataset_names() {
  static const std::vector<std::string> known = {
      "synthetic", "cifar10",       "cifar100",
      "mnist",     "fashion-mnist", "image-folder"};
  return known;
}

std::shared_ptr<const Dataset> open(const DataSpec& spec, Split split) {
  if (spec.name == "synthetic") {
    return synthetic(spec.seed, spec.samples, split);
  }
  if (spec.name == "cifar10") return cifar10(spec.dir, split, spec.warns);
  if (spec.name == "cifar100") return cifar100(spec.dir, split);
  if (spec.name == "mnist") return mnist(spec.dir, split);
  if (spec.name == "fashion-mnist") return fashion_mnist(spec.dir, split);
  if (spec.name == "image-folder") {
    return image_folder(spec.dir, split, spec.image_size, spec.warns);
  }
  throw InvalidArgument("data",
                        {.code = ErrorCode::kUnknownName,
                         .what = "there is no dataset '" + spec.name + "'",
                         .fix = did_you_mean(spec.name, dataset_names())});
}

}  // namespace lockstep::data
