#include <cstring>
#include <filesystem>
#include <utility>

#include <fmt/format.h>

#include "lockstep/base/error.h"
#include "lockstep/base/format.h"
#include "lockstep/data/data_folder.h"
#include "lockstep/data/datasets.h"
#include "lockstep/data/images/idx_file.h"

namespace lockstep::data {
namespace {

namespace fs = std::filesystem;

constexpr int64_t kSmallSide = 28;
constexpr int64_t kSmallBytes = kSmallSide * kSmallSide;
// MNIST has 60,000. The limit keeps a small file from filling the memory.
constexpr int64_t kMaxImages = 1'000'000;

struct MnistForm {
  std::string name;  ///< name in --data
  float mean;
  float stddev;
  bool may_be_mirrored;
};

std::string find_idx(const MnistForm& form, const std::string& dir,
                     const std::string& name) {
  std::error_code error;
  for (const char* ending : {"", ".gz"}) {
    const fs::path path = fs::path(dir) / (name + ending);
    if (fs::exists(path, error)) return path.string();
  }
  const std::string torchvision =
      form.name == "mnist" ? "MNIST/raw" : "FashionMNIST/raw";
  throw DataError(
      {.code = ErrorCode::kMalformedData,
       .what = fmt::format("folder {} is not of {}", dir, form.name),
       .expected = fmt::format("{0} or {0}.gz", name),
       .got = error ? error.message() : "no such file",
       .fix = fs::is_directory(fs::path(dir) / torchvision, error)
                  ? fmt::format("name the folder {} in it", torchvision)
                  : fmt::format("name another folder (--data-dir), or get the "
                                "files: lockstep data {} --dir DIR",
                                form.name)});
}

class Mnist : public Dataset {
 public:
  Mnist(const MnistForm& form, IdxArray images, IdxArray labels)
      : images_(std::move(images.bytes)), labels_(std::move(labels.bytes)) {
    channels_ = 1;
    height_ = width_ = kSmallSide;
    mean_ = {form.mean};
    stddev_ = {form.stddev};
    may_be_mirrored_ = form.may_be_mirrored;
  }

  int64_t size() const override { return static_cast<int64_t>(labels_.size()); }
  void read_checked(int64_t index, std::span<uint8_t> out) const override {
    std::memcpy(out.data(), images_.data() + index * kSmallBytes, out.size());
  }
  int64_t label_of(int64_t index) const override {
    return labels_[static_cast<size_t>(index)];
  }

 private:
  std::vector<uint8_t> images_;
  std::vector<uint8_t> labels_;
};

std::shared_ptr<const Dataset> open_mnist(const MnistForm& form,
                                          const std::string& dir, Split split) {
  check_data_folder(dir, form.name, "the folder of its four files");
  const std::string part = split == Split::kTrain ? "train" : "t10k";
  const auto images_path = find_idx(form, dir, part + "-images-idx3-ubyte");
  const auto labels_path = find_idx(form, dir, part + "-labels-idx1-ubyte");
  auto images = read_idx(images_path, {kAnySize, kSmallSide, kSmallSide},
                         kMaxImages * kSmallBytes);
  auto labels = read_idx(labels_path, {kAnySize}, kMaxImages);
  if (images.sizes[0] != labels.sizes[0] || images.sizes[0] == 0) {
    throw DataError(
        {.code = ErrorCode::kMalformedData,
         .what = fmt::format("{} and {} do not fit", images_path, labels_path),
         .expected = "as many labels as images, and at least one",
         .got = fmt::format("{} and {}", counted(images.sizes[0], "image"),
                            counted(labels.sizes[0], "label")),
         .fix = "get both files again"});
  }
  auto dataset =
      std::make_shared<Mnist>(form, std::move(images), std::move(labels));
  for (int64_t i = 0; i < dataset->size(); ++i) {
    if (dataset->label(i) < dataset->classes()) continue;
    throw DataError(
        {.code = ErrorCode::kMalformedData,
         .what = fmt::format("{}: bad label of image {}", labels_path, i),
         .expected = fmt::format("0 to {}", dataset->classes() - 1),
         .got = fmt::format("{}", dataset->label(i)),
         .fix = "get the file again: it is damaged or not " + form.name});
  }
  return dataset;
}

}  // namespace

std::shared_ptr<const Dataset> mnist(const std::string& dir, Split split) {
  return open_mnist({"mnist", 0.1307f, 0.3081f, false}, dir, split);
}

std::shared_ptr<const Dataset> fashion_mnist(const std::string& dir,
                                             Split split) {
  return open_mnist({"fashion-mnist", 0.2860f, 0.3530f, true}, dir, split);
}

}  // namespace lockstep::data
