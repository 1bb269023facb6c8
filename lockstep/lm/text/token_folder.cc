#include <algorithm>
#include <filesystem>
#include <system_error>

#include <fmt/format.h>

#include "lockstep/base/checksum.h"
#include "lockstep/base/error.h"
#include "lockstep/lm/text/tokens.h"

namespace lockstep::data {
namespace {

constexpr size_t kMaxShards = 4096;

// Returns the paths of the files NAME.bin in `folder` for whose NAME `is_part`
// is true.
template <class IsPart>
std::vector<std::string> files_in(const std::string& folder,
                                  const IsPart& is_part) {
  constexpr std::string_view kEnding = ".bin";
  std::vector<std::string> paths;
  std::error_code code;
  std::filesystem::directory_iterator entry(folder, code);
  for (; !code && entry != std::filesystem::directory_iterator();
       entry.increment(code)) {
    const std::string name = entry->path().filename().string();
    if (!name.ends_with(kEnding)) continue;
    if (!is_part(
            std::string_view(name).substr(0, name.size() - kEnding.size()))) {
      continue;
    }
    paths.push_back(entry->path().string());
    if (paths.size() > kMaxShards) {
      throw DataError({.code = ErrorCode::kMalformedData,
                       .what = folder + " has too many files of tokens",
                       .expected = fmt::format("at most {}", kMaxShards),
                       .got = "more",
                       .fix = "write larger ones (--shard-tokens)"});
    }
  }
  if (code) {
    throw DataError({.code = ErrorCode::kFileAccess,
                     .what = "can't read tokens from " + folder,
                     .expected = "a folder with files of tokens",
                     .got = code.message()});
  }
  std::sort(paths.begin(), paths.end());
  return paths;
}

std::vector<std::string> files_with_prefix(const std::string& folder,
                                           std::string_view prefix) {
  auto paths = files_in(
      folder, [&](std::string_view name) { return name.starts_with(prefix); });
  if (!paths.empty()) return paths;
  throw DataError(
      {.code = ErrorCode::kFileAccess,
       .what = "can't read tokens from " + folder,
       .expected = fmt::format("a folder with files {}*.bin", prefix),
       .got = "none",
       .fix = "write them with `lockstep tokenize`"});
}

}  // namespace

std::vector<std::string> token_files(const std::string& folder,
                                     const std::string& part) {
  auto ours = files_in(folder, [&](std::string_view name) {
    return name.starts_with(part + "_");
  });
  if (!ours.empty()) return ours;
  return files_in(folder, [&](std::string_view name) {
    return name == part || name.ends_with("_" + part) ||
           name.find("_" + part + "_") != std::string_view::npos;
  });
}

TokenFolder::TokenFolder(const std::string& folder, std::string_view prefix)
    : TokenFolder(folder, files_with_prefix(folder, prefix)) {}

TokenFolder::TokenFolder(const std::string& folder,
                         const std::vector<std::string>& files)
    : path_(folder) {
  for (const std::string& path : files) {
    files_.push_back(std::make_unique<const TokenFile>(path));
    const TokenFile& file = *files_.back();
    const TokenFile& first = *files_.front();
    if (file.format() != first.format()) {
      throw DataError({.code = ErrorCode::kMalformedData,
                       .what = folder + " mixes files of different formats",
                       .expected = "one header and one width of tokens",
                       .got = fmt::format("{} and {}", first.path(), path),
                       .fix = "keep each format in a folder of its own"});
    }
    begins_.push_back(begins_.back() + file.size());
  }
}

void TokenFolder::read_checked(int64_t begin, std::span<int64_t> out) const {
  // The last file that does not begin after `begin`. This skips empty files,
  // which begin where the next one does.
  auto file = static_cast<size_t>(
      std::upper_bound(begins_.begin(), begins_.end(), begin) -
      begins_.begin() - 1);
  while (!out.empty()) {
    const auto left = static_cast<size_t>(begins_[file + 1] - begin);
    const auto part = out.first(std::min(left, out.size()));
    files_[file]->read(begin - begins_[file], part);
    begin += static_cast<int64_t>(part.size());
    out = out.subspan(part.size());
    ++file;
  }
}

std::string TokenFolder::fingerprint() const {
  Sha256 sha256;
  for (const auto& file : files_) sha256.add(file->fingerprint());
  return sha256.hex();
}

}  // namespace lockstep::data
