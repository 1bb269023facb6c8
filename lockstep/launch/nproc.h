#pragma once

#include <string>

namespace lockstep::launch {

/// How many workers `text` asks for: a number, `cpu` (one for each core that
/// this process may use), `gpu` (one for each CUDA device) or `auto` (GPUs if
/// there are any, else cores). Throws InvalidArgument; LaunchError for `gpu`
/// where there is none.
int parse_nproc(const std::string& text);

/// "2", or "2:2". Throws InvalidArgument, also for a range: membership that
/// changes is not there yet.
int parse_nnodes(const std::string& text);

}  // namespace lockstep::launch
