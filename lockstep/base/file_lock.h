#pragma once

#include <string>

#include "lockstep/base/file_descriptor.h"

namespace lockstep {

enum class FileLock {
  kHeld,         ///< this process holds the lock
  kTaken,        ///< another process holds it
  kUnsupported,  ///< the file system has no locks; errno says why
};

/// Tries to lock an open file or folder for this process (flock) and does not
/// wait. The kernel releases the lock when the process ends for any reason.
/// Process ids would not do: they are reused, and mean nothing on another host.
///
/// Lustre without -o flock, NFS without lockd and others fail with different
/// errors. Only EWOULDBLOCK means that another process holds the lock.
FileLock try_lock(const FileDescriptor& file);

/// Returns true if `file` still has the name `path`. An earlier owner of the
/// lock may have removed it.
bool has_path(const FileDescriptor& file, const std::string& path);

}  // namespace lockstep
