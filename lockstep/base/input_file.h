#pragma once

#include <cstddef>
#include <functional>
#include <span>
#include <string>
#include <sys/stat.h>

#include "lockstep/base/file_descriptor.h"

namespace lockstep {

struct RegularFile {
  FileDescriptor descriptor;
  struct stat status {};
};

enum class Links { kFollow, kRefuse };

/// Opens a regular file for reading. Use it for every file that a user names or
/// that is in a folder which others may write to: opening a pipe waits for its
/// other end, and reading a device may never end. Throws IoError if there is no
/// such file or if it is not a regular file.
RegularFile open_regular_file(const std::string& path,
                              Links links = Links::kFollow);

/// Calls `take` with the bytes of a regular file, in order, part by part.
/// Throws IoError.
void read_in_parts(const std::string& path,
                   const std::function<void(std::span<const std::byte>)>& take);

}  // namespace lockstep
