#include <array>
#include <limits>
#include <utility>

#include <fmt/format.h>

#include "lockstep/base/error.h"
#include "lockstep/data/text/token_header.h"
#include "lockstep/data/text/tokens.h"

namespace lockstep::data {
namespace {

// Bytes that are collected before they are written.
constexpr size_t kPendingBytes = size_t{256} << 10;

std::array<int32_t, kTokenHeaderBytes / 4> header_of(TokenFormat format,
                                                     int64_t size) {
  return {format == TokenFormat::kUint32 ? kUint32Magic : kUint16Magic,
          token_header_version(format), static_cast<int32_t>(size)};
}

}  // namespace

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
  constexpr int64_t kMost = std::numeric_limits<int32_t>::max();
  if (static_cast<int64_t>(tokens.size()) > kMost - size_) {
    throw DataError({.code = ErrorCode::kFileTooLarge,
                     .what = path_ + " would hold too many tokens",
                     .expected = fmt::format("at most {}", kMost),
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
