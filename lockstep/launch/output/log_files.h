#pragma once

#include <optional>
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

/// The folder of a run's logs, in torchrun's layout: <log_dir>/<run
/// id>_<random>/attempt_<restarts>/<local rank>/ with stdout.log, stderr.log
/// and error.json, and attempt_<restarts>/filtered_stdout.log and
/// filtered_stderr.log. Only the owner can read it.
class LogFiles {
 public:
  /// If `log_dir` is empty, the folder is temporary, and the destructor removes
  /// it unless keep() was called. Throws IoError.
  LogFiles(const std::string& log_dir, const std::string& run_id, int workers);

  /// Creates the folders of an attempt. The constructor creates those of
  /// attempt 0.
  void begin_attempt(int attempt);

  void keep();
  bool is_kept() const { return is_kept_; }
  const std::string& run_folder() const { return run_; }
  std::string attempt_folder() const;
  std::string folder(int local_rank) const;
  std::string file(int local_rank, const std::string& name) const;

 private:
  std::optional<RunFolder> temporary_;
  std::string run_;
  int workers_;
  int attempt_ = 0;
  bool is_kept_;
};

}  // namespace lockstep::launch
