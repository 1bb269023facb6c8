#pragma once

#include <string>

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

}  // namespace lockstep::launch
