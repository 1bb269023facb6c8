#pragma once

#include <string>

#include "lockstep/base/file_descriptor.h"

namespace lockstep::launch {

/// A temporary folder of a run that only its owner can read. The destructor
/// removes it. After a SIGKILL, the next run that makes such a folder in the
/// same place removes it. A file in the folder is locked while its process
/// lives, which shows whether the run is over.
class RunFolder {
 public:
  /// Creates the folder in $TMPDIR. Throws IoError.
  RunFolder();
  ~RunFolder();
  RunFolder(const RunFolder&) = delete;
  RunFolder& operator=(const RunFolder&) = delete;

  const std::string& path() const { return path_; }
  /// Keeps the folder: no run will remove it.
  void keep();

 private:
  std::string path_;
  FileDescriptor lock_;
  bool is_kept_ = false;
};

}  // namespace lockstep::launch
