#include "lockstep/data/cifar10.h"

#include <algorithm>
#include <filesystem>
#include <string_view>
#include <vector>

#include <fmt/format.h>
#include <fmt/ranges.h>

#include "lockstep/base/error.h"
#include "lockstep/base/log.h"
#include "lockstep/base/terminal.h"
#include "lockstep/data/cifar_records.h"
#include "lockstep/data/data_folder.h"

namespace lockstep::data {
namespace {

namespace fs = std::filesystem;

constexpr int kTrainFiles = 5;
constexpr int64_t kTrainImages = 50'000;
constexpr std::string_view kTestFile = "test_batch.bin";

bool is_train_file(const std::string& name) {
  return name.starts_with("data_batch_") && name.ends_with(".bin");
}

// Returns advice for those who have another form of the dataset, or who named
// the folder above it.
std::string advice(const fs::path& dir) {
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
  for (const auto& entry : fs::directory_iterator(folder)) {
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
         .fix = advice(folder)});
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

}  // namespace

std::shared_ptr<const Dataset> cifar10(const std::string& dir, Split split,
                                       bool warns) {
  const auto files = files_of(dir, split);
  const auto dataset = cifar_records({.name = "CIFAR-10",
                                      .labels = {10},
                                      .mean = {0.4914f, 0.4822f, 0.4465f},
                                      .stddev = {0.2470f, 0.2435f, 0.2616f}},
                                     files);
  if (warns && split == Split::kTrain) {
    warn_of_missing_files(dir, files, dataset->size());
  }
  return dataset;
}

}  // namespace lockstep::data
