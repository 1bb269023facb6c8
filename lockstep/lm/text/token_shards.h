#pragma once

#include <cstdint>
#include <memory>
#include <span>
#include <string>
#include <vector>

#include "lockstep/lm/text/tokens.h"

namespace lockstep::data {

/// Writes tokens to files of a folder: PREFIX000000.bin, PREFIX000001.bin, ...
/// All are full except the last one. TokenFolder reads them as one sequence.
class TokenShardWriter {
 public:
  /// Throws InvalidArgument (kBadOption) for shards of fewer than one token or
  /// more than 2,147,483,647.
  TokenShardWriter(std::string folder, std::string prefix, TokenFormat format,
                   int64_t shard_tokens);

  /// Throws DataError and IoError as TokenFileWriter does.
  void add(std::span<const uint32_t> tokens);
  /// Completes the last file. Without tokens, there is no file.
  void commit();

  int64_t size() const { return size_; }  ///< tokens so far
  /// Returns the files that are complete.
  const std::vector<std::string>& paths() const { return paths_; }

 private:
  std::string folder_;
  std::string prefix_;
  TokenFormat format_;
  int64_t shard_tokens_;
  int64_t size_ = 0;
  std::unique_ptr<TokenFileWriter> file_;
  std::vector<std::string> paths_;
};

/// Paths of the files that move_last_tokens() leaves in a folder.
struct SplitShards {
  std::vector<std::string> from;
  std::vector<std::string> to;
};

/// Moves the last `tokens` tokens of the files FROM*.bin in `folder`, which
/// TokenShardWriter wrote, to files TO*.bin. Throws InvalidArgument
/// (kBadOption) if there are fewer tokens.
SplitShards move_last_tokens(const std::string& folder, const std::string& from,
                             const std::string& to, int64_t tokens,
                             int64_t shard_tokens);

}  // namespace lockstep::data
