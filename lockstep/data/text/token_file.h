#pragma once

#include <cstdint>
#include <span>
#include <string>

#include "lockstep/base/file_descriptor.h"
#include "lockstep/data/text/token_source.h"

namespace lockstep::data {

/// The form in which a file holds its tokens. All numbers are little-endian.
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

/// Number of bytes in llm.c's header.
inline constexpr int64_t kTokenHeaderBytes = int64_t{256} * 4;

/// Returns the number of bytes in a token.
int64_t token_bytes(TokenFormat format);

/// A file of tokens on disk. Its first four bytes determine the format.
///
/// It is read with pread() and not mapped. If another process truncates the
/// file, that is then an error, while with a mapping SIGBUS would end this
/// process. Tokens appended after the file was opened are not seen.
class TokenFile : public TokenSource {
 public:
  /// Throws DataError: kFileAccess if the file can't be opened or is not a
  /// regular file, kMalformedData for an invalid header or size.
  explicit TokenFile(const std::string& path);

  int64_t size() const override { return size_; }
  /// Returns the SHA-256 of the whole file, including the header. Throws
  /// DataError (kMalformedData) if the file has changed since it was opened.
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
  int64_t bytes_ = 0;        // size of the file when it was opened
  int64_t modified_ns_ = 0;  // modification time at that moment
  int64_t data_begin_ = 0;   // offset of the first token in bytes
  int64_t size_ = 0;
};

}  // namespace lockstep::data
