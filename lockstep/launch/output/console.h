#pragma once

#include <cstddef>
#include <string>
#include <string_view>

namespace lockstep::launch {

/// The agent's own stdout or stderr. It never waits for its reader: what the
/// reader does not take is kept, and meanwhile the workers' pipes are not read.
/// So a slow reader slows the workers down, and nothing is lost.
class Console {
 public:
  explicit Console(int fd);

  void add(std::string_view text) {
    if (!is_broken_) pending_.append(text);
  }
  bool has_pending() const { return !pending_.empty(); }
  bool is_full() const { return pending_.size() >= kFullBytes; }
  /// Whether the reader is gone. What is added after that is dropped.
  bool is_broken() const { return is_broken_; }
  int fd() const { return fd_; }

  /// Writes as much as the reader takes without waiting, in whole lines if
  /// possible.
  void write_some();

 private:
  // The size of a pipe's buffer on Linux.
  static constexpr size_t kFullBytes = 64 << 10;

  size_t next_piece(size_t written) const;
  bool is_ready() const;

  int fd_;
  bool is_file_;
  bool is_broken_ = false;
  std::string pending_;
};

}  // namespace lockstep::launch
