#pragma once

#include <map>
#include <string>
#include <vector>

// Parsers for the values of options of `lockstep run`.
namespace lockstep::launch {

/// Returns the number of workers that `text` asks for: a number, `cpu` (one for
/// each core that this process may use), `gpu` (one for each CUDA device) or
/// `auto` (GPUs if there are any, else cores). Throws InvalidArgument, or
/// LaunchError for `gpu` on a machine without a GPU.
int parse_nproc(const std::string& text);

struct NodeCount {
  int least = 1;
  int most = 1;
};

/// Parses "2", or "1:4" for a job whose nodes may join and leave. Throws
/// InvalidArgument.
NodeCount parse_nnodes(const std::string& text);

/// A selection of a worker's two streams. The values are torchrun's.
enum class Streams { kNone = 0, kOut = 1, kErr = 2, kBoth = 3 };

/// Returns true if `streams` includes `stream`.
bool has(Streams streams, Streams stream);

/// The streams of each local rank that `--redirects` or `--tee` selects.
struct StreamChoice {
  Streams for_all = Streams::kNone;
  std::map<int, Streams> per_rank;  ///< used instead of for_all unless empty

  Streams of(int local_rank) const;
  bool is_none() const;
};

/// Parses "3" for all ranks, or "0:1,1:2": stdout of local rank 0, stderr of 1.
/// Throws InvalidArgument naming `option`, also for a rank outside [0,
/// workers).
StreamChoice parse_streams(const std::string& option, const std::string& text,
                           int workers);

/// Parses "0,2": local ranks below `workers`. Throws InvalidArgument naming
/// `option`.
std::vector<int> parse_ranks(const std::string& option, const std::string& text,
                             int workers);

/// Returns "SIGTERM", or "signal 64" for a signal without a name.
std::string signal_name(int signal);

/// Parses "apple,orange": texts that lines may contain. Two commas stand for a
/// comma in a text: "a,,b". Throws InvalidArgument naming `option`.
std::vector<std::string> parse_filters(const std::string& option,
                                       const std::string& text);

/// Replaces ${name} and $name in `text` by `values`, and $$ by a dollar sign.
/// Other text is kept unchanged, as by Template.safe_substitute() of Python.
std::string fill_template(const std::string& text,
                          const std::map<std::string, std::string>& values);

/// Returns the numbers of the signals in "SIGTERM,SIGUSR1", without
/// repetitions. Throws InvalidArgument for an unknown name, and for SIGKILL and
/// SIGSTOP, which no process can handle.
std::vector<int> parse_signals(const std::string& names);

}  // namespace lockstep::launch
