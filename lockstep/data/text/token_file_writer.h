#pragma once

#include <cstddef>
#include <cstdint>
#include <span>
#include <string>
#include <vector>

#include "lockstep/base/atomic_file.h"
#include "lockstep/data/text/token_file.h"

namespace lockstep::data {

/// Writes a file of tokens piece by piece. It gets its name when it is
/// complete. If destroyed without commit(), nothing is left behind.
class TokenFileWriter {
 public:
  /// Throws IoError.
  TokenFileWriter(std::string path, TokenFormat format);

  /// Throws DataError: kMalformedData for a token that does not fit the format,
  /// kFileTooLarge for more tokens than the header can count, 2,147,483,647.
  /// Throws IoError.
  void add(std::span<const uint32_t> tokens);
  /// Completes the header and gives the file its name. Throws IoError.
  void commit();

  int64_t size() const { return size_; }  ///< tokens so far

 private:
  void flush();

  std::string path_;
  TokenFormat format_;
  AtomicFile file_;
  std::vector<std::byte> pending_;
  int64_t size_ = 0;
};

}  // namespace lockstep::data
