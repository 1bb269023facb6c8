#pragma once

#include <cstdint>
#include <span>
#include <string>

#include "lockstep/base/file_descriptor.h"
#include "lockstep/data/text/token_source.h"

namespace lockstep::data {

/// How a file holds its tokens. All numbers are little-endian.
enum class TokenFormat {
  /// uint16 tokens and nothing else, as nanoGPT writes them.
  kRawUint16,
  /// llm.c's form for GPT-2: a header of 256 int32 (20240520, 1, the number of
  /// tokens, zeros), then uint16 tokens.
  kUint16,
  /// llm.c's form for Llama 3: the same header with 20240801 and 7, then
  /// uint32 tokens.
  kUint32,
};

/// The bytes of llm.c's header.
inline constexpr int64_t kTokenHeaderBytes = int64_t{256} * 4;

/// The bytes of a token.
int64_t token_bytes(TokenFormat format);

/// A file of tokens on disk. Its first four bytes tell the format.
///
/// It is read with pread() and not mapped: a file that another process cuts
/// short is an error then, where a mapping would end this process by SIGBUS.
/// What is appended after the file was opened is not seen.
class TokenFile : public TokenSource {
 public:
  /// Throws DataError: kFileAccess for what can't be opened or is no regular
  /// file, kMalformedData for a header or a size that can't be.
  explicit TokenFile(const std::string& path);

  int64_t size() const override { return size_; }
  /// SHA-256 of the whole file, header included. Throws DataError
  /// (kMalformedData) if the file was changed since it was opened.
  std::string fingerprint() const override;

  TokenFormat format() const { return format_; }
  const std::string& path() const { return path_; }

 private:
  std::string name() const override { return path_; }
  /// Throws DataError (kMalformedData) if the file is shorter than it was.
  void read_checked(int64_t begin, std::span<int64_t> out) const override;
  void read_header();
  void read_bytes(int64_t offset, std::span<std::byte> out) const;
  template <class Token>
  void read_tokens(int64_t begin, std::span<int64_t> out) const;

  std::string path_;
  FileDescriptor file_;
  TokenFormat format_ = TokenFormat::kRawUint16;
  int64_t bytes_ = 0;        // of the file, when it was opened
  int64_t modified_ns_ = 0;  // likewise
  int64_t data_begin_ = 0;   // where the first token lies, in bytes
  int64_t size_ = 0;
};

}  // namespace lockstep::data
