#pragma once

#include "lockstep/base/file_descriptor.h"

namespace lockstep {

/// The two ends of a pipe. Both are closed on exec.
struct Pipe {
  FileDescriptor read;
  FileDescriptor write;
};

/// Throws IoError.
Pipe make_pipe();

}  // namespace lockstep
