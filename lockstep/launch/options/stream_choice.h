#pragma once

#include <map>
#include <string>
#include <vector>

namespace lockstep::launch {

/// None, one or both of a worker's two streams. The values are torchrun's.
enum class Streams { kNone = 0, kOut = 1, kErr = 2, kBoth = 3 };

/// Whether `streams` has `stream`.
bool has(Streams streams, Streams stream);

/// Which streams of which local ranks: `--redirects` and `--tee`.
struct StreamChoice {
  Streams of_all = Streams::kNone;
  std::map<int, Streams> of_rank;  ///< of_all counts only if this is empty

  Streams of(int local_rank) const;
  bool is_none() const;
};

/// "3" for all ranks, or "0:1,1:2": stdout of local rank 0, stderr of 1. Throws
/// InvalidArgument naming `option`, also for a rank outside of [0, workers).
StreamChoice parse_streams(const std::string& option, const std::string& text,
                           int workers);

/// "0,2": local ranks of `workers`. Throws InvalidArgument naming `option`.
std::vector<int> parse_ranks(const std::string& option, const std::string& text,
                             int workers);

}  // namespace lockstep::launch
