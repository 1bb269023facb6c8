#pragma once

#include <cstddef>
#include <string>
#include <string_view>

namespace lockstep::launch {

/// One of the agent's own two streams. Never waits for its reader: what it
/// does not take is kept, and the workers' pipes are left alone until there is
/// room, so that a slow reader slows the workers down and loses nothing.
class Console {
 public:
  explicit Console(int fd);

  void add(std::string_view text) {
    if (!is_broken_) pending_.append(text);
  }
  bool has_pending() const { return !pending_.empty(); }
  bool is_full() const { return pending_.size() >= kEnough; }
  /// The reader is gone; what is added since then is dropped.
  bool is_broken() const { return is_broken_; }
  int fd() const { return fd_; }

  /// Writes as much as the reader takes at once, at ends of lines if possible.
  void write_some();

 private:
  // A pipe's buffer, as Linux has it.
  static constexpr size_t kEnough = 64 << 10;

  size_t next_piece(size_t written) const;
  bool is_ready() const;

  int fd_;
  bool is_file_;
  bool is_broken_ = false;
  std::string pending_;
};

}  // namespace lockstep::launch
