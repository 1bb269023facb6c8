#include "lockstep/data/cifar10.h"

#include <algorithm>
#include <filesystem>
#include <limits>
#include <string_view>
#include <vector>

#include <fmt/format.h>
#include <fmt/ranges.h>

#include "lockstep/base/atomic_file.h"
#include "lockstep/base/error.h"
#include "lockstep/base/log.h"
#include "lockstep/base/terminal.h"

namespace lockstep::data {
namespace {

namespace fs = std::filesystem;

constexpr size_t kImageBytes = 3 * 32 * 32;
constexpr size_t kRecordBytes = 1 + kImageBytes;
constexpr int kClasses = 10;
constexpr int kTrainFiles = 5;
constexpr int64_t kTrainImages = 50'000;
constexpr std::string_view kTestFile = "test_batch.bin";

bool is_train_file(const std::string& name) {
  return name.starts_with("data_batch_") && name.ends_with(".bin");
}

// What people who have another form of the dataset, or name the folder above,
// need to hear.
std::string advice(const fs::path& dir) {
  std::error_code ignored;
  if (fs::is_directory(dir / "cifar-10-batches-bin", ignored)) {
    return "name the folder cifar-10-batches-bin in it";
  }
  if (fs::exists(dir / "data_batch_1", ignored)) {
    return "this is the Python form; get the one for C programs "
           "(cifar-10-binary.tar.gz)";
  }
  return "name the folder with the *.bin files (--data-dir)";
}

std::vector<std::string> files_of(const std::string& dir, Split split) {
  const fs::path folder(dir);
  std::error_code error;
  if (dir.empty() || !fs::is_directory(folder, error)) {
    throw DataError(
        {.code = ErrorCode::kFileAccess,
         .what = dir.empty() ? "cifar10 needs a folder"
                             : fmt::format("can't open folder {}", dir),
         .expected = "the folder of CIFAR-10's binary files",
         .got = dir.empty()                 ? "none"
                : fs::exists(folder, error) ? "something not a folder"
                : error                     ? error.message()
                                            : "no such folder",
         .fix = "name one with --data-dir"});
  }
  std::vector<std::string> files;
  fs::directory_iterator entries(folder, error);
  if (error) {
    throw DataError({.code = ErrorCode::kFileAccess,
                     .what = fmt::format("can't read folder {}", dir),
                     .got = error.message(),
                     .fix = "check its permissions"});
  }
  for (const auto& entry : entries) {
    const std::string name = entry.path().filename().string();
    if (split == Split::kTrain ? is_train_file(name) : name == kTestFile) {
      files.push_back(entry.path().string());
    }
  }
  if (files.empty()) {
    const bool is_empty = fs::is_empty(folder, error);
    throw DataError(
        {.code = ErrorCode::kMalformedData,
         .what = fmt::format("folder {} lacks images to {} on", dir,
                             split == Split::kTrain ? "train" : "test"),
         .expected = split == Split::kTrain ? "data_batch_*.bin"
                                            : std::string(kTestFile),
         .got = is_empty ? "an empty folder" : "no such file",
         .fix = advice(folder)});
  }
  std::sort(files.begin(), files.end());
  return files;
}

std::string read_records(const std::string& path) {
  std::error_code error;
  if (!fs::is_regular_file(path, error)) {
    throw DataError({.code = ErrorCode::kFileAccess,
                     .what = "can't read " + path,
                     .expected = "a file of CIFAR-10 records",
                     .got = fs::is_directory(path, error)
                                ? "a folder"
                                : "something not a file"});
  }
  std::string bytes;
  try {
    bytes = read_file(path, std::numeric_limits<uint32_t>::max());
  } catch (const IoError& cause) {
    throw DataError({.code = ErrorCode::kFileAccess,
                     .what = "can't read " + path,
                     .got = cause.what(),
                     .fix = "check that this user may read it"});
  }
  if (bytes.empty() || bytes.size() % kRecordBytes != 0) {
    throw DataError(
        {.code = ErrorCode::kMalformedData,
         .what = path + (bytes.empty() ? " is empty" : " is truncated"),
         .expected = fmt::format(
             "records of {} bytes, so {} bytes for {}", kRecordBytes,
             (bytes.size() / kRecordBytes + 1) * kRecordBytes,
             bytes.size() / kRecordBytes + 1),
         .got = fmt::format("{} bytes", bytes.size()),
         .fix = "get the file anew"});
  }
  for (size_t at = 0; at < bytes.size(); at += kRecordBytes) {
    const int label = static_cast<unsigned char>(bytes[at]);
    if (label >= kClasses) {
      throw DataError(
          {.code = ErrorCode::kMalformedData,
           .what = fmt::format("{}: bad label in record {} (byte {})", path,
                               at / kRecordBytes, at),
           .expected = "0 to 9",
           .got = fmt::format("{}", label),
           .fix = "get the file anew: it is damaged or not CIFAR-10"});
    }
  }
  return bytes;
}

class Cifar10 : public Dataset {
 public:
  explicit Cifar10(const std::vector<std::string>& files) {
    for (const std::string& path : files) {
      std::string bytes = read_records(path);
      first_.push_back(size_);
      size_ += static_cast<int64_t>(bytes.size() / kRecordBytes);
      files_.push_back(std::move(bytes));
    }
  }

  int64_t size() const override { return size_; }
  std::span<const uint8_t> image(int64_t index) const override {
    return {record(index) + 1, kImageBytes};
  }
  int64_t label(int64_t index) const override { return *record(index); }

 private:
  const uint8_t* record(int64_t index) const {
    const auto after = std::upper_bound(first_.begin(), first_.end(), index);
    const auto file = static_cast<size_t>(after - first_.begin() - 1);
    const auto at = static_cast<size_t>(index - first_[file]) * kRecordBytes;
    return reinterpret_cast<const uint8_t*>(files_[file].data() + at);
  }

  std::vector<std::string> files_;  ///< their contents
  std::vector<int64_t> first_;      ///< index of each file's first image
  int64_t size_ = 0;
};

// A download that broke off: training would go on with fewer images, and
// nobody would see why it learns less.
void warn_of_missing_files(const std::string& dir,
                           const std::vector<std::string>& files,
                           int64_t images) {
  std::vector<std::string> missing;
  for (int i = 1; i <= kTrainFiles; ++i) {
    const fs::path path = fs::path(dir) / fmt::format("data_batch_{}.bin", i);
    if (std::find(files.begin(), files.end(), path.string()) == files.end()) {
      missing.push_back(path.filename().string());
    }
  }
  if (missing.empty()) return;
  log_warning("data",
              fmt::format("folder {} lacks {} of CIFAR-10: there are {} images "
                          "to train on, of {}",
                          dir, fmt::join(missing, ", "), format_count(images),
                          format_count(kTrainImages)));
}

}  // namespace

std::shared_ptr<const Dataset> cifar10(const std::string& dir, Split split,
                                       bool warns) {
  const auto files = files_of(dir, split);
  auto dataset = std::make_shared<Cifar10>(files);
  if (warns && split == Split::kTrain) {
    warn_of_missing_files(dir, files, dataset->size());
  }
  return dataset;
}

}  // namespace lockstep::data
