#pragma once

#include <string>
#include <vector>

namespace lockstep::launch {

/// "SIGTERM"; "signal 64" for a signal without a name.
std::string signal_name(int signal);

/// "SIGTERM,SIGUSR1" as numbers, without repetitions. Throws InvalidArgument
/// for an unknown name, and for SIGKILL and SIGSTOP, which no process can
/// handle.
std::vector<int> parse_signals(const std::string& names);

}  // namespace lockstep::launch
