#pragma once

#include <string>

#include "lockstep/base/file_descriptor.h"

namespace lockstep::launch {

/// A temporary folder of a run that only its owner can read. The destructor
/// removes it; after a SIGKILL, the next run that makes such a folder in the
/// same place does. A file in the folder is locked while its process lives,
/// which tells whether its run is over.
class RunFolder {
 public:
  /// Makes the folder in $TMPDIR. Throws IoError.
  RunFolder();
  ~RunFolder();
  RunFolder(const RunFolder&) = delete;
  RunFolder& operator=(const RunFolder&) = delete;

  const std::string& path() const { return path_; }
  /// From now on nobody removes it.
  void keep();

 private:
  std::string path_;
  FileDescriptor lock_;
  bool is_kept_ = false;
};

}  // namespace lockstep::launch
