#include "lockstep/data/cifar_records.h"

#include <algorithm>
#include <cstring>
#include <limits>
#include <utility>

#include <fmt/format.h>

#include "lockstep/base/atomic_file.h"
#include "lockstep/base/error.h"

namespace lockstep::data {
namespace {

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

}  // namespace

std::shared_ptr<const Dataset> cifar_records(
    const CifarForm& form, const std::vector<std::string>& files) {
  return std::make_shared<CifarRecords>(form, files);
}

}  // namespace lockstep::data
