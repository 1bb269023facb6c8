#pragma once

#include <string>
#include <sys/types.h>

namespace lockstep {

/// The fields of /proc/PID/stat (proc(5)) from the third one on, which is the
/// state: "S 4711 ...". The second one, the name, is left out, because a
/// program may choose it freely. "" if there is no such process.
std::string process_stat(pid_t pid);

/// The process whose child `pid` is; -1 if there is no such process.
pid_t parent_of(pid_t pid);

}  // namespace lockstep
