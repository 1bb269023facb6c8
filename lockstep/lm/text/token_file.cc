#include <algorithm>
#include <array>
#include <bit>
#include <cerrno>
#include <cstddef>
#include <cstring>
#include <limits>
#include <sys/stat.h>
#include <unistd.h>
#include <utility>
#include <vector>

#include <fmt/format.h>

#include "lockstep/base/checksum.h"
#include "lockstep/base/error.h"
#include "lockstep/base/input_file.h"
#include "lockstep/lm/text/tokens.h"

namespace lockstep::data {
namespace {

static_assert(std::endian::native == std::endian::little,
              "token files are little-endian, and read as they lie");

// Bytes read at once, which stay in the first-level cache until they are
// widened.
constexpr int64_t kPieceBytes = 16 << 10;

// Bytes that are collected before they are written.
constexpr size_t kPendingBytes = size_t{256} << 10;

// First of the 256 int32 of llm.c's header, which determines the format.
constexpr int32_t kUint16Magic = 20240520;
constexpr int32_t kUint32Magic = 20240801;

// Returns the second one. Not for kRawUint16, which has no header.
constexpr int32_t token_header_version(TokenFormat format) {
  return format == TokenFormat::kUint32 ? 7 : 1;
}

std::array<int32_t, kTokenHeaderBytes / 4> header_of(TokenFormat format,
                                                     int64_t size) {
  return {format == TokenFormat::kUint32 ? kUint32Magic : kUint16Magic,
          token_header_version(format), static_cast<int32_t>(size)};
}

constexpr int64_t kNanoseconds = 1'000'000'000;

int64_t modified_ns(const struct stat& status) {
  return status.st_mtim.tv_sec * kNanoseconds + status.st_mtim.tv_nsec;
}

[[noreturn]] void refuse_token_file(const std::string& path,
                                    const std::string& what,
                                    const std::string& expected,
                                    const std::string& got) {
  throw DataError({.code = ErrorCode::kMalformedData,
                   .what = path + " " + what,
                   .expected = expected,
                   .got = got,
                   .fix = "write the file again, with `lockstep tokenize`"});
}

[[noreturn]] void cant_read(const std::string& path, const std::string& got) {
  throw DataError({.code = ErrorCode::kFileAccess,
                   .what = "can't read " + path,
                   .expected = "a file of tokens",
                   .got = got});
}

}  // namespace

int64_t token_bytes(TokenFormat format) {
  return format == TokenFormat::kUint32 ? 4 : 2;
}

TokenFile::TokenFile(const std::string& path) : path_(path) {
  try {
    RegularFile file = open_regular_file(path);
    file_ = std::move(file.descriptor);
    bytes_ = file.status.st_size;
    modified_ns_ = modified_ns(file.status);
  } catch (const IoError& error) {
    throw DataError({.code = error.code(), .what = text_of(error)});
  }
  read_header();
}

void TokenFile::read_header() {
  int32_t magic = 0;
  if (bytes_ >= static_cast<int64_t>(sizeof magic)) {
    read_bytes(0, std::as_writable_bytes(std::span(&magic, 1)));
  }
  if (magic != kUint16Magic && magic != kUint32Magic) {
    // nanoGPT's tokens. They can't begin with such a number: 20240520 would be
    // the tokens 55432 and 308, and GPT-2 has no token 55432.
    if (bytes_ % 2 != 0) {
      refuse_token_file(path_, "is no whole number of tokens",
                        "an even number of bytes: uint16 tokens, or llm.c's "
                        "header before them",
                        fmt::format("{} bytes", bytes_));
    }
    size_ = bytes_ / 2;
    return;
  }
  format_ = magic == kUint16Magic ? TokenFormat::kUint16 : TokenFormat::kUint32;
  if (bytes_ < kTokenHeaderBytes) {
    refuse_token_file(path_, "ends within its header",
                      fmt::format("{} bytes of header", kTokenHeaderBytes),
                      fmt::format("{}", bytes_));
  }
  std::array<int32_t, 3> header{};
  read_bytes(0, std::as_writable_bytes(std::span(header)));
  const int32_t version = token_header_version(format_);
  if (header[1] != version) {
    refuse_token_file(path_, "is of a version that is not known",
                      fmt::format("{} beside {}", version, magic),
                      fmt::format("{}", header[1]));
  }
  // Not multiplied, since the number in the header may be anything.
  const int64_t data = bytes_ - kTokenHeaderBytes;
  const int64_t width = token_bytes(format_);
  if (data % width != 0 || header[2] != data / width) {
    refuse_token_file(path_, "does not have the size that its header says",
                      fmt::format("{} tokens of {} bytes", header[2], width),
                      fmt::format("{} bytes after the header", data));
  }
  data_begin_ = kTokenHeaderBytes;
  size_ = header[2];
}

void TokenFile::read_bytes(int64_t offset, std::span<std::byte> out) const {
  while (!out.empty()) {
    const ssize_t got = ::pread(file_.get(), out.data(), out.size(), offset);
    if (got < 0 && errno == EINTR) continue;
    if (got < 0) cant_read(path_, std::strerror(errno));
    if (got == 0) {
      refuse_token_file(path_, "was cut short while it was read",
                        fmt::format("{} bytes", bytes_),
                        fmt::format("{}", offset));
    }
    offset += got;
    out = out.subspan(static_cast<size_t>(got));
  }
}

template <class Token>
void TokenFile::read_tokens(int64_t begin, std::span<int64_t> out) const {
  constexpr size_t kPiece = kPieceBytes / sizeof(Token);
  std::array<Token, kPiece> piece;
  int64_t offset = data_begin_ + begin * static_cast<int64_t>(sizeof(Token));
  while (!out.empty()) {
    const auto tokens = std::span(piece).first(std::min(kPiece, out.size()));
    const auto bytes = std::as_writable_bytes(tokens);
    read_bytes(offset, bytes);
    std::copy(tokens.begin(), tokens.end(), out.begin());
    offset += static_cast<int64_t>(bytes.size());
    out = out.subspan(tokens.size());
  }
}

void TokenFile::read_checked(int64_t begin, std::span<int64_t> out) const {
  if (format_ == TokenFormat::kUint32) {
    read_tokens<uint32_t>(begin, out);
  } else {
    read_tokens<uint16_t>(begin, out);
  }
}

std::string TokenFile::fingerprint() const {
  Sha256 sha256;
  std::vector<std::byte> piece(size_t{1} << 20);
  for (int64_t offset = 0; offset < bytes_;) {
    const auto left = static_cast<size_t>(bytes_ - offset);
    const auto bytes = std::span(piece).first(std::min(piece.size(), left));
    read_bytes(offset, bytes);
    sha256.add(bytes);
    offset += static_cast<int64_t>(bytes.size());
  }
  struct stat status {};
  if (::fstat(file_.get(), &status) != 0) {
    cant_read(path_, std::strerror(errno));
  }
  if (status.st_size != bytes_ || modified_ns(status) != modified_ns_) {
    refuse_token_file(path_, "was changed since it was opened",
                      fmt::format("{} bytes, not written to", bytes_),
                      fmt::format("{} bytes", status.st_size));
  }
  return sha256.hex();
}

TokenFileWriter::TokenFileWriter(std::string path, TokenFormat format)
    : path_(std::move(path)), format_(format), file_(path_) {
  pending_.reserve(kPendingBytes + sizeof(uint32_t));
  if (format_ == TokenFormat::kRawUint16) return;
  // The header counts no tokens before commit(), so an incomplete file is
  // recognized.
  const auto header = header_of(format_, 0);
  file_.write(std::as_bytes(std::span(header)));
}

void TokenFileWriter::add(std::span<const uint32_t> tokens) {
  constexpr int64_t kMax = std::numeric_limits<int32_t>::max();
  if (static_cast<int64_t>(tokens.size()) > kMax - size_) {
    throw DataError({.code = ErrorCode::kFileTooLarge,
                     .what = path_ + " would hold too many tokens",
                     .expected = fmt::format("at most {}", kMax),
                     .got = fmt::format("{} and {} more", size_, tokens.size()),
                     .fix = "write several files (--shard-tokens)"});
  }
  const auto width = static_cast<size_t>(token_bytes(format_));
  for (const uint32_t token : tokens) {
    if (width == 2 && token > std::numeric_limits<uint16_t>::max()) {
      throw DataError({.code = ErrorCode::kMalformedData,
                       .what = path_ + " has no room for a token",
                       .expected = "at most 65535, in 16 bits",
                       .got = fmt::format("{}", token),
                       .fix = "write tokens of 32 bits"});
    }
    // Little-endian: the low bytes come first.
    const auto bytes = std::as_bytes(std::span(&token, 1)).first(width);
    pending_.insert(pending_.end(), bytes.begin(), bytes.end());
    if (pending_.size() >= kPendingBytes) flush();
  }
  size_ += static_cast<int64_t>(tokens.size());
}

void TokenFileWriter::commit() {
  flush();
  if (format_ != TokenFormat::kRawUint16) {
    const auto header = header_of(format_, size_);
    file_.rewrite(0, std::as_bytes(std::span(header)));
  }
  file_.commit();
}

void TokenFileWriter::flush() {
  file_.write(pending_);
  pending_.clear();
}

}  // namespace lockstep::data
