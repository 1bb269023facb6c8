#pragma once

#include <cstddef>
#include <span>
#include <string>
#include <string_view>

namespace lockstep {

/// A file that appears under its name only when it is complete. It is written
/// to a temporary name in the same folder, synced and renamed, and then the
/// folder is synced. Without commit(), the destructor removes the temporary
/// file. A `path` that is not a regular file, such as /dev/stdout, is written
/// directly. Throws IoError.
class AtomicFile {
 public:
  explicit AtomicFile(std::string path);
  ~AtomicFile();
  AtomicFile(const AtomicFile&) = delete;
  AtomicFile& operator=(const AtomicFile&) = delete;

  void write(std::span<const std::byte> bytes);
  void write(std::string_view text);
  /// Replaces bytes that were written before, starting at byte `offset` of the
  /// file. For a header that is known only at the end. Does not work for files
  /// that are written directly, such as a pipe.
  void rewrite(size_t offset, std::span<const std::byte> bytes);
  void commit();

 private:
  void close_file();

  std::string path_;
  std::string temporary_;  // empty: written directly, or committed
  int fd_ = -1;
};

/// Flushes a folder's entries to disk. Throws IoError.
void sync_directory(const std::string& path);
/// Creates `path` and its parents, as mkdir -p does. Throws IoError naming the
/// part of the path that can't be created.
void make_directories(const std::string& path);
/// Returns the content of the file. Throws IoError if it can't be read or is
/// larger than `max_bytes`.
std::string read_file(const std::string& path, size_t max_bytes);

}  // namespace lockstep
