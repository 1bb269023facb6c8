#pragma once

#include <string>
#include <string_view>

#include "lockstep/base/error.h"

namespace lockstep {

/// Failure of this process to open more files or map more memory. It is not a
/// CommError: after a CommError, a rank waits for another rank to be replaced.
/// Here the rank itself has to be replaced. A new process has nothing open.
class OutOfResources : public Error {
 public:
  /// `error` is an errno for which is_out_of_resources() is true.
  OutOfResources(std::string_view component, const std::string& what,
                 int error);
};

/// Returns whether the errno `error` is EMFILE, ENFILE or ENOMEM.
bool is_out_of_resources(int error);

/// Returns the memory limits of this process (ulimit -v and -d): "this process
/// may have 4.0 GiB of addresses (ulimit -v)". Returns "" if there are none.
std::string memory_limits();

/// Returns the same for the size of a file (ulimit -f).
std::string file_size_limit();

/// Throws OutOfResources if no descriptor is left to open another file. Call it
/// after a failed call that does not report its cause.
void check_descriptors(std::string_view component, const std::string& what);

}  // namespace lockstep
