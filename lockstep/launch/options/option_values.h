#pragma once

#include <map>
#include <string>
#include <vector>

// The values that options of `lockstep run` take.
namespace lockstep::launch {

/// How many workers `text` asks for: a number, `cpu` (one for each core that
/// this process may use), `gpu` (one for each CUDA device) or `auto` (GPUs if
/// there are any, else cores). Throws InvalidArgument; LaunchError for `gpu` on
/// a machine without a GPU.
int parse_nproc(const std::string& text);

struct NodeCount {
  int least = 1;
  int most = 1;
};

/// "2", or "1:4" for a job whose nodes may join and leave. Throws
/// InvalidArgument.
NodeCount parse_nnodes(const std::string& text);

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

/// "SIGTERM"; "signal 64" for a signal without a name.
std::string signal_name(int signal);

/// "SIGTERM,SIGUSR1" as numbers, without repetitions. Throws InvalidArgument
/// for an unknown name, and for SIGKILL and SIGSTOP, which no process can
/// handle.
std::vector<int> parse_signals(const std::string& names);

}  // namespace lockstep::launch
