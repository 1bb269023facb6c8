#include "lockstep/launch/output/pipe.h"

#include <cerrno>
#include <cstring>
#include <fcntl.h>

#include "lockstep/base/error.h"

namespace lockstep::launch {

Pipe make_pipe() {
  int ends[2];
  if (::pipe2(ends, O_CLOEXEC) != 0) {
    throw LaunchError({.code = ErrorCode::kFileAccess,
                       .what = "no pipe for a worker",
                       .got = std::strerror(errno),
                       .fix = "start fewer workers or raise `ulimit -n`"});
  }
  return {FileDescriptor(ends[0]), FileDescriptor(ends[1])};
}

}  // namespace lockstep::launch
