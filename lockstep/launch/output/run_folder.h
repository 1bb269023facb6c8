#pragma once

#include <string>

#include "lockstep/base/file_descriptor.h"

namespace lockstep::launch {

/// A temporary folder of a run, for its owner alone. It is removed with this
/// object; after a SIGKILL the next run that makes one in the same place
/// removes it. To tell whose run is over, a file in the folder is locked as
/// long as its process lives.
class RunFolder {
 public:
  /// In $TMPDIR. Throws IoError.
  RunFolder();
  ~RunFolder();
  RunFolder(const RunFolder&) = delete;
  RunFolder& operator=(const RunFolder&) = delete;

  const std::string& path() const { return path_; }
  /// Nobody is to remove it.
  void keep();

 private:
  std::string path_;
  FileDescriptor lock_;
  bool is_kept_ = false;
};

}  // namespace lockstep::launch
