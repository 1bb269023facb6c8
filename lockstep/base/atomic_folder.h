#pragma once

#include <string>

namespace lockstep {

/// A folder that appears under its name only when it is complete: built under
/// a temporary name in the same parent, synced, renamed, and the parent
/// synced. Destroyed without commit(), it leaves nothing behind; killed, it
/// leaves the temporary folder for sweep_unfinished_folders(). The files in it
/// must be synced by who writes them (AtomicFile does). Throws IoError.
class AtomicFolder {
 public:
  explicit AtomicFolder(std::string path);
  ~AtomicFolder();
  AtomicFolder(const AtomicFolder&) = delete;
  AtomicFolder& operator=(const AtomicFolder&) = delete;

  /// Where to write the files.
  const std::string& temporary() const { return temporary_; }
  /// Takes the place of a folder that has the name already.
  void commit();

 private:
  std::string path_;
  std::string temporary_;
  int lock_ = -1;  ///< held while the owner lives
};

/// Removes the temporary folders in `parent` whose owners are dead.
void sweep_unfinished_folders(const std::string& parent);

/// Removes a folder with all that is in it, such that it is gone under its
/// name at once and never seen there in part.
void remove_folder(const std::string& path);

}  // namespace lockstep
