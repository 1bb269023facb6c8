#pragma once

#include <cstdint>
#include <memory>
#include <span>
#include <string>
#include <vector>

#include "lockstep/data/text/token_file.h"
#include "lockstep/data/text/token_file_writer.h"

namespace lockstep::data {

/// Writes tokens to files of a folder: PREFIX000000.bin, PREFIX000001.bin, ...,
/// each full but for the last one. TokenFolder reads them as one sequence.
class TokenShardWriter {
 public:
  /// Throws InvalidArgument (kBadOption) for shards of less than one token or
  /// more than 2,147,483,647.
  TokenShardWriter(std::string folder, std::string prefix, TokenFormat format,
                   int64_t shard_tokens);

  /// Throws DataError and IoError, as TokenFileWriter.
  void add(std::span<const uint32_t> tokens);
  /// Completes the last file. Without a token there is none.
  void commit();

  int64_t size() const { return size_; }  ///< tokens so far
  /// The files that are complete.
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

/// Moves the last `tokens` tokens of the files FROM*.bin in `folder`, which
/// TokenShardWriter wrote, to files TO*.bin. Returns the paths of both, FROM's
/// first. Throws InvalidArgument (kBadOption) for more tokens than there are.
struct SplitShards {
  std::vector<std::string> from;
  std::vector<std::string> to;
};
SplitShards move_last_tokens(const std::string& folder, const std::string& from,
                             const std::string& to, int64_t tokens,
                             int64_t shard_tokens);

}  // namespace lockstep::data
