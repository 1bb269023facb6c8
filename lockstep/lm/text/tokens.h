#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include <torch/arg.h>

#include "lockstep/base/atomic_file.h"
#include "lockstep/base/file_descriptor.h"
#include "lockstep/data/batch_source.h"

namespace lockstep::data {

/// Interface to a sequence of tokens, which may be larger than memory.
/// Thread-safe once made.
class TokenSource {
 public:
  virtual ~TokenSource() = default;

  virtual int64_t size() const = 0;
  /// Writes the tokens begin..begin+out.size()-1 to `out`. Throws
  /// InvalidArgument if there are fewer tokens.
  void read(int64_t begin, std::span<int64_t> out) const;
  /// Returns the SHA-256 of the tokens in hex. May take seconds.
  virtual std::string fingerprint() const = 0;

 private:
  /// Returns a name for errors, such as a path.
  virtual std::string name() const { return "the tokens"; }
  /// Implements read() for arguments that were checked.
  virtual void read_checked(int64_t begin, std::span<int64_t> out) const = 0;
};

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
  /// Opens these files of `folder`. Throws DataError in the same way.
  TokenFolder(const std::string& folder, const std::vector<std::string>& files);

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

/// Returns the paths of the files in `folder` with the tokens of a `part`,
/// "train" or "val", in order:
///
/// - train_*.bin, as `lockstep tokenize` names them, or else
/// - train.bin, as nanoGPT does, and *_train.bin and *_train_*.bin, as llm.c.
std::vector<std::string> token_files(const std::string& folder,
                                     const std::string& part);

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

/// Options for cutting tokens into windows.
struct TokenWindowOptions {
  /// Number of tokens in a window.
  TORCH_ARG(int64_t, context) = 64;
  /// Number of possible tokens. Each id must be below it.
  TORCH_ARG(int64_t, vocabulary) = 0;
  /// Starts the first window of each epoch at a different place, keyed by
  /// `seed`, so each epoch has different windows.
  TORCH_ARG(bool, shift) = false;
  TORCH_ARG(uint64_t, seed) = 0;
};

/// Windows of a sequence of tokens as samples. The data are `context` tokens,
/// and the targets are the tokens that follow each of them. Both are
/// (N, context) int64.
///
/// The windows of an epoch are adjacent, so no token is a target twice. They
/// leave out less than a window at each end. With `shift`, the first one begins
/// at a token in 0..context-1, which is drawn for each epoch.
class TokenWindows : public BatchSource {
 public:
  /// Throws InvalidArgument if there are too few tokens for a window.
  TokenWindows(std::shared_ptr<const TokenSource> tokens,
               const TokenWindowOptions& options);

  int64_t size() const override { return windows_; }
  std::string sample_name() const override { return "window"; }
  /// Throws DataError for an id outside the vocabulary.
  Batch read(std::span<const int64_t> indices, int64_t epoch) const override;
  std::string fingerprint() const override { return tokens_->fingerprint(); }
  const void* object_of_one_thread() const override { return nullptr; }

 private:
  int64_t shift_in(int64_t epoch) const;

  std::shared_ptr<const TokenSource> tokens_;
  TokenWindowOptions options_;
  int64_t windows_ = 0;
};

}  // namespace lockstep::data
