#include "lockstep/base/file_descriptor.h"

#include <cerrno>
#include <cstring>
#include <fcntl.h>

#include "lockstep/base/error.h"

namespace lockstep {

Pipe make_pipe() {
  int ends[2];
  if (::pipe2(ends, O_CLOEXEC) != 0) {
    throw IoError({.code = ErrorCode::kOutOfResources,
                   .what = "can't make a pipe",
                   .got = std::strerror(errno),
                   .fix = "start fewer programs or raise `ulimit -n`"});
  }
  return {FileDescriptor(ends[0]), FileDescriptor(ends[1])};
}

}  // namespace lockstep
