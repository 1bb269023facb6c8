#pragma once

#include <cstdio>
#include <cstdlib>
#include <fstream>
#include <string>
#include <sys/resource.h>
#include <unistd.h>

#include "lockstep/base/error.h"

namespace lockstep {

/// For a death test. Leaves this process address space for about three more
/// threads and runs `act`, which needs many. Ends with 0 and prints the message
/// on stderr if `act` throws an Error that says so.
template <typename Act>
[[noreturn]] void exit_without_threads(const Act& act) {
  std::ifstream statm("/proc/self/statm");
  rlim_t pages = 0;
  statm >> pages;
  rlimit stack{};
  ::getrlimit(RLIMIT_STACK, &stack);
  const rlim_t stack_bytes =
      stack.rlim_cur == RLIM_INFINITY ? rlim_t{8} << 20 : stack.rlim_cur;
  const rlim_t limit =
      pages * static_cast<rlim_t>(::sysconf(_SC_PAGESIZE)) + 3 * stack_bytes;
  const rlimit bounded{limit, limit};
  if (::setrlimit(RLIMIT_AS, &bounded) != 0) std::_Exit(3);
  try {
    act();
  } catch (const Error& error) {
    std::fputs(error.what(), stderr);
    const bool says_so =
        std::string(error.what()).find("can't start a thread") !=
        std::string::npos;
    std::_Exit(says_so ? 0 : 4);
  }
  std::_Exit(5);
}

}  // namespace lockstep
