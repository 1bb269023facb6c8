#pragma once

#include <cstddef>
#include <string>
#include <string_view>

namespace lockstep::launch {

/// The agent's own stdout or stderr. It never waits for its reader. Text that
/// the reader does not accept yet is kept, and the workers' pipes are not read
/// in the meantime. A slow reader therefore slows the workers down, and nothing
/// is lost.
class Console {
 public:
  explicit Console(int fd);

  void add(std::string_view text) {
    if (!is_broken()) pending_.append(text);
  }
  bool has_pending() const { return !pending_.empty(); }
  bool is_full() const { return pending_.size() >= kFullBytes; }
  /// Returns true if a write has failed. Text that is added later is dropped.
  bool is_broken() const { return error_ != 0; }
  /// Returns true if it failed because the reader is gone, and not for another
  /// reason such as a full disk.
  bool is_reader_gone() const;
  /// Returns why the write failed: "can't write /mnt/log: No space left on
  /// device".
  std::string why_broken() const;
  int fd() const { return fd_; }

  /// Writes as much as the reader accepts without blocking, in whole lines if
  /// possible.
  void write_some();

 private:
  // The size of a pipe's buffer on Linux.
  static constexpr size_t kFullBytes = 64 << 10;

  size_t next_piece(size_t written) const;
  bool is_ready() const;

  int fd_;
  bool is_file_;
  int error_ = 0;  // the errno of the write that failed
  std::string pending_;
};

}  // namespace lockstep::launch
