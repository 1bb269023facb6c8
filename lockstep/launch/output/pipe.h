#pragma once

#include "lockstep/base/file_descriptor.h"

namespace lockstep::launch {

struct Pipe {
  FileDescriptor read;
  FileDescriptor write;
};
/// Both ends are closed on exec. Throws LaunchError.
Pipe make_pipe();

}  // namespace lockstep::launch
