#pragma once

#include <map>
#include <string>
#include <vector>

namespace lockstep::launch {

/// Some of a worker's two streams. The values are torchrun's.
enum class Streams { kNone = 0, kOut = 1, kErr = 2, kBoth = 3 };

bool has(Streams streams, Streams one);

/// Which streams of which local ranks: `--redirects` and `--tee`.
struct StreamChoice {
  Streams of_all = Streams::kNone;
  std::map<int, Streams> of_rank;  ///< if not empty, of_all does not count

  Streams of(int local_rank) const;
  bool is_none() const;
};

/// "3" for all ranks, or "0:1,1:2": stdout of local rank 0, stderr of 1.
/// Throws InvalidArgument naming `option`, also for a rank that is not one of
/// `workers`.
StreamChoice parse_streams(const std::string& option, const std::string& text,
                           int workers);

/// "0,2": local ranks of `workers`. Throws InvalidArgument naming `option`.
std::vector<int> parse_ranks(const std::string& option, const std::string& text,
                             int workers);

}  // namespace lockstep::launch
