#pragma once

#include <cstddef>
#include <span>
#include <string>
#include <string_view>

namespace lockstep {

/// A file that appears under its name only when it is complete: written to a
/// temporary name in the same folder, synced, renamed, and the folder synced.
/// Destroyed without commit(), it leaves nothing behind. A `path` that is no
/// regular file, such as /dev/stdout, is written straight. Throws IoError.
class AtomicFile {
 public:
  explicit AtomicFile(std::string path);
  ~AtomicFile();
  AtomicFile(const AtomicFile&) = delete;
  AtomicFile& operator=(const AtomicFile&) = delete;

  void write(std::span<const std::byte> bytes);
  void write(std::string_view text);
  /// Replaces bytes that were written before, from byte `offset` of the file
  /// on: a header that is known only at the end. What is written straight (a
  /// pipe) can't be replaced.
  void rewrite(size_t offset, std::span<const std::byte> bytes);
  void commit();

 private:
  void close_file();

  std::string path_;
  std::string temporary_;  // empty: written straight, or committed
  int fd_ = -1;
};

/// Flushes a folder's entries to disk. Throws IoError.
void sync_directory(const std::string& path);
/// mkdir -p. Throws IoError naming the part that is in the way.
void make_directories(const std::string& path);
/// The whole file. Throws IoError, also when it is larger than `max_bytes`.
std::string read_file(const std::string& path, size_t max_bytes);

}  // namespace lockstep
