#include <algorithm>
#include <cctype>
#include <filesystem>
#include <utility>
#include <vector>

#include <fmt/format.h>

#include "lockstep/base/checksum.h"
#include "lockstep/base/error.h"
#include "lockstep/base/format.h"
#include "lockstep/base/log.h"
#include "lockstep/data/data_folder.h"
#include "lockstep/data/datasets.h"
#include "lockstep/data/images/decode_image.h"

namespace lockstep::data {
namespace {

namespace fs = std::filesystem;

// Limits the depth: a link to a folder above would never end.
constexpr int kMaxFolders = 16;

/// A folder with images of one class, relative to the folder of the split, and
/// the names of its images.
struct LabelledFolder {
  std::string path;
  int64_t label;
  std::vector<std::string> names;
  int64_t first = 0;  ///< number of its first image
};

struct LeftOut {
  int64_t files = 0;
  std::string example;
};

bool is_image(const fs::path& path) {
  std::string ending = path.extension().string();
  for (char& letter : ending) {
    letter =
        static_cast<char>(std::tolower(static_cast<unsigned char>(letter)));
  }
  return ending == ".jpg" || ending == ".jpeg" || ending == ".png";
}

std::vector<std::string> class_names(const fs::path& path) {
  std::vector<std::string> names;
  for (const auto& entry : entries_of(path)) {
    std::error_code ignored;
    if (entry.is_directory(ignored)) {
      names.push_back(entry.path().filename().string());
    }
  }
  std::sort(names.begin(), names.end());
  return names;
}

/// Adds the images in `relative` below `root`, and in its subfolders.
void add_folder(const fs::path& root, const std::string& relative,
                int64_t label, int depth, std::vector<LabelledFolder>& folders,
                LeftOut& left_out) {
  if (depth > kMaxFolders) {
    throw DataError(
        {.code = ErrorCode::kFileAccess,
         .what = "can't read folder " + (root / relative).string(),
         .got = fmt::format("more than {} folders in each other", kMaxFolders),
         .fix = "remove the link that leads to a folder above it"});
  }
  LabelledFolder folder{.path = relative, .label = label};
  for (const auto& entry : entries_of(root / relative)) {
    const std::string name = entry.path().filename().string();
    std::error_code ignored;
    if (entry.is_directory(ignored)) {
      add_folder(root, relative + "/" + name, label, depth + 1, folders,
                 left_out);
    } else if (is_image(name)) {
      folder.names.push_back(name);
    } else if (left_out.files++ == 0) {
      left_out.example = relative + "/" + name;
    }
  }
  if (folder.names.empty()) return;
  std::sort(folder.names.begin(), folder.names.end());
  folders.push_back(std::move(folder));
}

fs::path split_folder(const std::string& dir, Split split) {
  check_data_folder(dir, "image-folder",
                    "a folder with train/ and val/, which have a folder for "
                    "each class");
  std::error_code error;
  const fs::path root(dir);
  if (split == Split::kTrain) {
    if (fs::is_directory(root / "train", error)) return root / "train";
  } else {
    for (const char* name : {"val", "test"}) {
      if (fs::is_directory(root / name, error)) return root / name;
    }
  }
  const bool is_train = split == Split::kTrain;
  throw DataError({.code = ErrorCode::kMalformedData,
                   .what = fmt::format("folder {} lacks images to {} on", dir,
                                       is_train ? "train" : "test"),
                   .expected = is_train ? "a folder train in it"
                                        : "a folder val or test in it",
                   .got = error && error != std::errc::no_such_file_or_directory
                              ? error.message()
                              : "no such folder",
                   .fix = "name the folder above the splits (--data-dir)"});
}

class ImageFolder : public Dataset {
 public:
  ImageFolder(const std::string& dir, Split split, int64_t image_size,
              bool warns)
      : root_(split_folder(dir, split)) {
    height_ = width_ = image_size;
    mean_ = {0.485f, 0.456f, 0.406f};
    stddev_ = {0.229f, 0.224f, 0.225f};
    const fs::path train = split_folder(dir, Split::kTrain);
    names_ = class_names(train);
    if (names_.empty()) {
      throw DataError({.code = ErrorCode::kMalformedData,
                       .what = "folder " + train.string() + " has no classes",
                       .expected = "a folder for each class",
                       .got = "no folder in it",
                       .fix = "put the images of a class into a folder"});
    }
    classes_ = static_cast<int64_t>(names_.size());
    LeftOut left_out;
    for (const auto& name : class_names(root_)) {
      add_class(train, name, left_out);
    }
    check_classes(split);
    // Sorted as torchvision sorts os.walk(): within a class by the whole path.
    std::sort(folders_.begin(), folders_.end(),
              [](const LabelledFolder& a, const LabelledFolder& b) {
                return std::tie(a.label, a.path) < std::tie(b.label, b.path);
              });
    for (auto& folder : folders_) {
      folder.first = size_;
      size_ += static_cast<int64_t>(folder.names.size());
    }
    if (!warns || left_out.files == 0) return;
    log_warning("data",
                fmt::format("folder {}: left out {} that don't end in .jpg, "
                            ".jpeg or .png, {} among them",
                            root_.string(),
                            left_out.files == 1
                                ? "1 file"
                                : format_count(left_out.files) + " files",
                            left_out.example));
  }

  int64_t size() const override { return size_; }
  void read_checked(int64_t index, std::span<uint8_t> out) const override {
    const LabelledFolder& folder = folder_of(index);
    const auto number = static_cast<size_t>(index - folder.first);
    const fs::path path = root_ / folder.path / folder.names[number];
    fit_image(read_image(path.string()), height_, out);
  }
  int64_t label_of(int64_t index) const override {
    return folder_of(index).label;
  }

  std::string fingerprint() const override {
    Sha256 digest;
    digest.add(fmt::format("{} x {},{},{} of {};", size_, channels_, height_,
                           width_, classes_));
    for (const auto& name : names_) digest.add(name + '\0');
    for (const auto& folder : folders_) {
      for (const auto& name : folder.names) {
        const fs::path path = root_ / folder.path / name;
        std::error_code error;
        const auto bytes = fs::file_size(path, error);
        if (error) {
          throw DataError({.code = ErrorCode::kFileAccess,
                           .what = "can't read " + path.string(),
                           .got = error.message(),
                           .fix = "check that the folder has not changed"});
        }
        digest.add(fmt::format("{}/{}", folder.path, name) + '\0');
        digest.add(fmt::format("{} {};", folder.label, bytes));
      }
    }
    return digest.hex();
  }

 private:
  void add_class(const fs::path& train, const std::string& name,
                 LeftOut& left_out) {
    const auto found = std::lower_bound(names_.begin(), names_.end(), name);
    if (found == names_.end() || *found != name) {
      throw DataError(
          {.code = ErrorCode::kMalformedData,
           .what = fmt::format("{} is of a class that is not trained",
                               (root_ / name).string()),
           .expected = fmt::format("one of the {} folders in {}", classes_,
                                   train.string()),
           .got = name,
           .fix = "remove it, or add images of it to train on"});
    }
    add_folder(root_, name, found - names_.begin(), 0, folders_, left_out);
  }

  void check_classes(Split split) const {
    std::vector<bool> has_images(names_.size());
    for (const auto& folder : folders_) {
      has_images[static_cast<size_t>(folder.label)] = true;
    }
    if (folders_.empty()) refuse_empty(root_);
    if (split == Split::kTest) return;
    for (size_t i = 0; i < names_.size(); ++i) {
      if (!has_images[i]) refuse_empty(root_ / names_[i]);
    }
  }

  [[noreturn]] static void refuse_empty(const fs::path& path) {
    throw DataError({.code = ErrorCode::kMalformedData,
                     .what = "folder " + path.string() + " has no images",
                     .expected = ".jpg, .jpeg or .png files",
                     .got = "none",
                     .fix = "remove it, or add images"});
  }

  const LabelledFolder& folder_of(int64_t index) const {
    const auto after =
        std::upper_bound(folders_.begin(), folders_.end(), index,
                         [](int64_t image, const LabelledFolder& folder) {
                           return image < folder.first;
                         });
    return *std::prev(after);
  }

  fs::path root_;
  std::vector<std::string> names_;  ///< names of the classes
  std::vector<LabelledFolder> folders_;
  int64_t size_ = 0;
};

}  // namespace

std::shared_ptr<const Dataset> image_folder(const std::string& dir, Split split,
                                            int64_t image_size, bool warns) {
  constexpr int64_t kMin = 8;
  constexpr int64_t kMax = 1024;
  if (image_size < kMin || image_size > kMax) {
    throw InvalidArgument(
        "data", {.code = ErrorCode::kBadOption,
                 .what = "can't make images of that size",
                 .expected = fmt::format("{} to {} pixels", kMin, kMax),
                 .got = fmt::format("{}", image_size)});
  }
  return std::make_shared<ImageFolder>(dir, split, image_size, warns);
}

}  // namespace lockstep::data
