#include "lockstep/lm/text/token_shards.h"

#include <algorithm>
#include <filesystem>
#include <limits>
#include <utility>

#include <fmt/format.h>

#include "lockstep/base/error.h"
#include "lockstep/lm/text/tokens.h"

namespace lockstep::data {
namespace {

// Passes the tokens begin..end-1 to `take`, some at a time.
template <class Take>
void for_pieces(const TokenSource& tokens, int64_t begin, int64_t end,
                Take take) {
  constexpr int64_t kPiece = 1 << 16;
  std::vector<int64_t> wide;
  std::vector<uint32_t> piece;
  while (begin < end) {
    wide.resize(static_cast<size_t>(std::min(kPiece, end - begin)));
    tokens.read(begin, wide);
    piece.assign(wide.begin(), wide.end());
    take(std::span<const uint32_t>(piece));
    begin += static_cast<int64_t>(wide.size());
  }
}

}  // namespace

TokenShardWriter::TokenShardWriter(std::string folder, std::string prefix,
                                   TokenFormat format, int64_t shard_tokens)
    : folder_(std::move(folder)),
      prefix_(std::move(prefix)),
      format_(format),
      shard_tokens_(shard_tokens) {
  constexpr int64_t kMax = std::numeric_limits<int32_t>::max();
  if (shard_tokens < 1 || shard_tokens > kMax) {
    throw InvalidArgument("data",
                          {.code = ErrorCode::kBadOption,
                           .what = "shards of that size can't be written",
                           .expected = fmt::format("1 to {} tokens", kMax),
                           .got = fmt::format("{}", shard_tokens)});
  }
}

void TokenShardWriter::add(std::span<const uint32_t> tokens) {
  while (!tokens.empty()) {
    if (!file_) {
      paths_.push_back(
          fmt::format("{}/{}{:06}.bin", folder_, prefix_, paths_.size()));
      file_ = std::make_unique<TokenFileWriter>(paths_.back(), format_);
    }
    const auto room = static_cast<size_t>(shard_tokens_ - file_->size());
    const auto part = tokens.first(std::min(room, tokens.size()));
    file_->add(part);
    size_ += static_cast<int64_t>(part.size());
    tokens = tokens.subspan(part.size());
    if (file_->size() == shard_tokens_) commit();
  }
}

void TokenShardWriter::commit() {
  if (!file_) return;
  file_->commit();
  file_.reset();
}

SplitShards move_last_tokens(const std::string& folder, const std::string& from,
                             const std::string& to, int64_t tokens,
                             int64_t shard_tokens) {
  const TokenFolder all(folder, from);
  if (tokens < 0 || tokens > all.size()) {
    throw InvalidArgument(
        "data", {.code = ErrorCode::kBadOption,
                 .what = "can't move tokens of " + folder,
                 .expected = fmt::format("0 to {} tokens", all.size()),
                 .got = fmt::format("{}", tokens)});
  }
  SplitShards result;
  const int64_t cut = all.size() - tokens;
  TokenShardWriter writer(folder, to, all.files().front()->format(),
                          shard_tokens);
  for_pieces(all, cut, all.size(),
             [&](std::span<const uint32_t> piece) { writer.add(piece); });
  writer.commit();
  result.to = writer.paths();

  int64_t begin = 0;
  for (const auto& file : all.files()) {
    const int64_t kept = std::clamp<int64_t>(cut - begin, 0, file->size());
    if (kept == 0) {
      std::filesystem::remove(file->path());
    } else if (kept < file->size()) {
      // Replaced under the same name. The file that is read stays open.
      TokenFileWriter shorter(file->path(), file->format());
      for_pieces(*file, 0, kept,
                 [&](std::span<const uint32_t> piece) { shorter.add(piece); });
      shorter.commit();
    }
    if (kept > 0) result.from.push_back(file->path());
    begin += file->size();
  }
  return result;
}

}  // namespace lockstep::data
