#include <algorithm>
#include <cstring>
#include <filesystem>
#include <limits>
#include <string_view>
#include <utility>
#include <vector>

#include <fmt/format.h>
#include <fmt/ranges.h>

#include "lockstep/base/atomic_file.h"
#include "lockstep/base/error.h"
#include "lockstep/base/format.h"
#include "lockstep/base/log.h"
#include "lockstep/data/data_folder.h"
#include "lockstep/data/datasets.h"

namespace lockstep::data {
namespace {

namespace fs = std::filesystem;

/// The binary form that CIFAR-10 and CIFAR-100 share (Krizhevsky, 2009):
/// records of label bytes and 3 x 32 x 32 bytes of image. A file may have any
/// number of records. The last label byte is the class.
struct CifarForm {
  std::string name;         ///< "CIFAR-100"
  std::vector<int> labels;  ///< number of values of each label byte
  std::vector<float> mean;
  std::vector<float> stddev;
};

constexpr size_t kCifarBytes = 3 * 32 * 32;

size_t record_bytes(const CifarForm& form) {
  return form.labels.size() + kCifarBytes;
}

void check_labels(const CifarForm& form, const std::string& path,
                  const std::string& bytes) {
  for (size_t at = 0; at < bytes.size(); at += record_bytes(form)) {
    for (size_t i = 0; i < form.labels.size(); ++i) {
      const int label = static_cast<unsigned char>(bytes[at + i]);
      if (label < form.labels[i]) continue;
      throw DataError(
          {.code = ErrorCode::kMalformedData,
           .what = fmt::format("{}: bad label in record {} (byte {})", path,
                               at / record_bytes(form), at + i),
           .expected = fmt::format("0 to {}", form.labels[i] - 1),
           .got = fmt::format("{}", label),
           .fix = fmt::format("get the file again: it is damaged or not {}",
                              form.name)});
    }
  }
}

std::string read_records(const CifarForm& form, const std::string& path) {
  std::string bytes;
  try {
    bytes = read_file(path, std::numeric_limits<uint32_t>::max());
  } catch (const IoError& cause) {
    throw DataError({.code = cause.code(), .what = text_of(cause)});
  }
  const size_t record = record_bytes(form);
  if (bytes.empty() || bytes.size() % record != 0) {
    throw DataError(
        {.code = ErrorCode::kMalformedData,
         .what = path + (bytes.empty() ? " is empty" : " is truncated"),
         .expected = fmt::format("records of {} bytes, so {} bytes for {}",
                                 record, (bytes.size() / record + 1) * record,
                                 bytes.size() / record + 1),
         .got = fmt::format("{} bytes", bytes.size()),
         .fix = "get the file again"});
  }
  check_labels(form, path, bytes);
  return bytes;
}

class CifarRecords : public Dataset {
 public:
  CifarRecords(const CifarForm& form, const std::vector<std::string>& files)
      : label_bytes_(form.labels.size()), record_bytes_(record_bytes(form)) {
    classes_ = form.labels.back();
    mean_ = form.mean;
    stddev_ = form.stddev;
    for (const std::string& path : files) {
      std::string bytes = read_records(form, path);
      first_.push_back(size_);
      size_ += static_cast<int64_t>(bytes.size() / record_bytes_);
      files_.push_back(std::move(bytes));
    }
  }

  int64_t size() const override { return size_; }
  void read_checked(int64_t index, std::span<uint8_t> out) const override {
    std::memcpy(out.data(), record(index) + label_bytes_, out.size());
  }
  int64_t label_of(int64_t index) const override {
    return record(index)[label_bytes_ - 1];
  }

 private:
  const uint8_t* record(int64_t index) const {
    const auto after = std::upper_bound(first_.begin(), first_.end(), index);
    const auto file = static_cast<size_t>(after - first_.begin() - 1);
    const auto at = static_cast<size_t>(index - first_[file]) * record_bytes_;
    return reinterpret_cast<const uint8_t*>(files_[file].data() + at);
  }

  size_t label_bytes_;
  size_t record_bytes_;
  std::vector<std::string> files_;  ///< contents of the files
  std::vector<int64_t> first_;      ///< index of each file's first image
  int64_t size_ = 0;
};

constexpr int kTrainFiles = 5;
constexpr int64_t kTrainImages = 50'000;
constexpr std::string_view kTestFile = "test_batch.bin";

bool is_train_file(const std::string& name) {
  return name.starts_with("data_batch_") && name.ends_with(".bin");
}

// Returns advice for those who have another form of the dataset, or who named
// the folder above it.
std::string cifar10_advice(const fs::path& dir) {
  std::error_code ignored;
  if (fs::is_directory(dir / "cifar-10-batches-bin", ignored)) {
    return "name the folder cifar-10-batches-bin in it";
  }
  if (fs::exists(dir / "data_batch_1", ignored)) {
    return "this is the Python form; get the one for C programs "
           "(cifar-10-binary.tar.gz)";
  }
  return "name the folder with the *.bin files (--data-dir), or get them: "
         "lockstep data cifar10 --dir DIR";
}

std::vector<std::string> files_of(const std::string& dir, Split split) {
  check_data_folder(dir, "cifar10", "the folder of CIFAR-10's binary files");
  const fs::path folder(dir);
  std::vector<std::string> files;
  for (const auto& entry : entries_of(folder)) {
    const std::string name = entry.path().filename().string();
    if (split == Split::kTrain ? is_train_file(name) : name == kTestFile) {
      files.push_back(entry.path().string());
    }
  }
  if (files.empty()) {
    std::error_code ignored;
    const bool is_empty = fs::is_empty(folder, ignored);
    throw DataError(
        {.code = ErrorCode::kMalformedData,
         .what = fmt::format("folder {} lacks images to {} on", dir,
                             split == Split::kTrain ? "train" : "test"),
         .expected = split == Split::kTrain ? "data_batch_*.bin"
                                            : std::string(kTestFile),
         .got = is_empty ? "an empty folder" : "no such file",
         .fix = cifar10_advice(folder)});
  }
  std::sort(files.begin(), files.end());
  return files;
}

// Warns of files that a broken download left out. Training would continue with
// fewer images, and nobody would see why the model learns less.
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
  log_warning(
      "data",
      fmt::format("folder {} lacks {} of CIFAR-10: there {} {} to "
                  "train on, of {}",
                  dir, fmt::join(missing, ", "), images == 1 ? "is" : "are",
                  counted(images, "image"), format_count(kTrainImages)));
}

std::string cifar100_advice(const fs::path& dir) {
  std::error_code ignored;
  if (fs::is_directory(dir / "cifar-100-binary", ignored)) {
    return "name the folder cifar-100-binary in it";
  }
  if (fs::exists(dir / "train", ignored)) {
    return "this is the Python form; get the binary one: lockstep data "
           "cifar100 --dir DIR";
  }
  return "name the folder with train.bin and test.bin (--data-dir), or get "
         "them: lockstep data cifar100 --dir DIR";
}

}  // namespace

std::shared_ptr<const Dataset> cifar10(const std::string& dir, Split split,
                                       bool warns) {
  const auto files = files_of(dir, split);
  const auto dataset = std::make_shared<CifarRecords>(
      CifarForm{.name = "CIFAR-10",
                .labels = {10},
                .mean = {0.4914f, 0.4822f, 0.4465f},
                .stddev = {0.2470f, 0.2435f, 0.2616f}},
      files);
  if (warns && split == Split::kTrain) {
    warn_of_missing_files(dir, files, dataset->size());
  }
  return dataset;
}

std::shared_ptr<const Dataset> cifar100(const std::string& dir, Split split) {
  check_data_folder(dir, "cifar100", "the folder of CIFAR-100's binary files");
  const std::string name = split == Split::kTrain ? "train.bin" : "test.bin";
  const fs::path path = fs::path(dir) / name;
  std::error_code error;
  if (!fs::exists(path, error)) {
    throw DataError({.code = ErrorCode::kMalformedData,
                     .what = "folder " + dir + " is not of CIFAR-100",
                     .expected = name,
                     .got = error ? error.message() : "no such file",
                     .fix = cifar100_advice(dir)});
  }
  return std::make_shared<CifarRecords>(
      CifarForm{.name = "CIFAR-100",
                .labels = {20, 100},
                .mean = {0.5071f, 0.4865f, 0.4409f},
                .stddev = {0.2673f, 0.2564f, 0.2762f}},
      std::vector{path.string()});
}

}  // namespace lockstep::data
