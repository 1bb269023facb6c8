#pragma once

#include <cstdint>
#include <memory>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "lockstep/data/text/token_file.h"
#include "lockstep/data/text/token_source.h"

namespace lockstep::data {

/// The token files in a folder as one sequence, in the order of their names:
/// train_000000.bin, train_000001.bin, ... Nothing is kept in memory.
///
/// Files stay open, so there are at most 4,096. With shards of 100 million
/// tokens that is 400 billion.
class TokenFolder : public TokenSource {
 public:
  /// Opens the files "PREFIX*.bin" of `folder`: "train_" for training, "" for
  /// all. Throws DataError: kFileAccess for a folder that can't be read or has
  /// no such file; kMalformedData for files that TokenFile refuses, different
  /// formats, or too many files.
  explicit TokenFolder(const std::string& folder, std::string_view prefix = "");

  int64_t size() const override { return begins_.back(); }
  /// Returns the SHA-256 of the files' fingerprints in order, whatever their
  /// names.
  std::string fingerprint() const override;

  const std::vector<std::unique_ptr<const TokenFile>>& files() const {
    return files_;
  }

 private:
  std::string name() const override { return path_; }
  void read_checked(int64_t begin, std::span<int64_t> out) const override;

  std::string path_;
  std::vector<std::unique_ptr<const TokenFile>> files_;
  std::vector<int64_t> begins_{0};  // start of each file, and the end
};

}  // namespace lockstep::data
