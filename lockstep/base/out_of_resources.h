#pragma once

#include <string>
#include <string_view>

#include "lockstep/base/error.h"

namespace lockstep {

/// This process can open no more files, or map no more memory. Not a CommError,
/// after which a rank waits for another to be replaced: here the rank itself is
/// what has to be replaced, and a process that starts afresh has nothing open.
class OutOfResources : public Error {
 public:
  /// `error` is one of those that is_out_of_resources() knows.
  OutOfResources(std::string_view component, const std::string& what,
                 int error);
};

/// Whether an `errno` says so: EMFILE, ENFILE or ENOMEM.
bool is_out_of_resources(int error);

/// The limits of memory that this process was started with, ulimit -v and -d:
/// "this process may have 4.0 GiB of addresses (ulimit -v)". "" without any.
std::string memory_limits();

/// The same of the size of a file: ulimit -f.
std::string file_size_limit();

/// Throws OutOfResources if a file can't be opened now for want of descriptors:
/// for after a failed call that does not tell its cause.
void check_descriptors(std::string_view component, const std::string& what);

}  // namespace lockstep
