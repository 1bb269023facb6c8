#pragma once

#include <string>
#include <sys/types.h>

namespace lockstep::launch {

/// Where each thread of another process of ours is: by eu-stack (elfutils) if
/// it is installed, else what /proc knows of them. Takes 10 s at most.
std::string stacks_of(pid_t pid);

}  // namespace lockstep::launch
