#pragma once

#include <string>

#include "lockstep/base/file_descriptor.h"

namespace lockstep {

/// A folder that appears under its name only when it is complete. It is built
/// under a temporary name in the same parent, synced and renamed, and then the
/// parent is synced. Without commit(), the destructor removes it. If the
/// process is killed, the temporary folder stays until
/// sweep_unfinished_folders(). The code that writes files into it must sync
/// them (AtomicFile does). Throws IoError.
class AtomicFolder {
 public:
  explicit AtomicFolder(std::string path);
  ~AtomicFolder();
  AtomicFolder(const AtomicFolder&) = delete;
  AtomicFolder& operator=(const AtomicFolder&) = delete;

  /// Returns the folder in which to write the files.
  const std::string& temporary() const { return temporary_; }
  /// Renames the folder to its final name, replacing a folder of that name.
  void commit();

 private:
  std::string path_;
  std::string temporary_;
  FileDescriptor lock_;
};

/// Removes the temporary folders in `parent` whose owners are dead. On a file
/// system without locks, nothing shows that an owner is dead, so they stay.
void sweep_unfinished_folders(const std::string& parent);

/// Removes a folder and its content. The folder is renamed first, so it
/// disappears at once and is never seen partly removed.
void remove_folder(const std::string& path);

}  // namespace lockstep
