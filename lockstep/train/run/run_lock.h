#pragma once

#include <string>

#include "lockstep/base/file_descriptor.h"

namespace lockstep::training {

/// Reserves the folder of a run for that run while this object lives. The
/// kernel releases the folder when its owner dies, for whatever reason.
class RunLock {
 public:
  /// Throws CheckpointError, which names the host and the process of the owner,
  /// if another run holds the folder for `patience_s`. A killed owner holds it
  /// until its memory has been freed, and as long as a process that it forked
  /// is alive. Throws IoError if nothing can be written there.
  explicit RunLock(const std::string& folder, double patience_s = 5);
  ~RunLock();
  RunLock(const RunLock&) = delete;
  RunLock& operator=(const RunLock&) = delete;

 private:
  const std::string path_;
  FileDescriptor file_;  // not open: the file system has no locks
};

}  // namespace lockstep::training
