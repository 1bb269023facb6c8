#pragma once

#include <cstdint>
#include <string>
#include <string_view>

#include "lockstep/base/stopwatch.h"

namespace lockstep::cli {

/// Shows on stderr what a command is doing: on a terminal in one line that
/// changes, elsewhere in a line every ten seconds.
class ProgressLine {
 public:
  /// `component` begins each line, in brackets.
  explicit ProgressLine(std::string component);
  ~ProgressLine() { erase(); }
  ProgressLine(const ProgressLine&) = delete;
  ProgressLine& operator=(const ProgressLine&) = delete;

  /// Shows `text` in place of the text before. Elsewhere than on a terminal, it
  /// is only shown if no line was for ten seconds.
  void show(std::string_view text);
  /// Prints a line that stays.
  void say(std::string_view text);
  bool is_on_terminal() const { return is_on_terminal_; }

 private:
  void erase();

  std::string begin_;
  bool is_on_terminal_;
  bool has_line_ = false;
  Stopwatch since_line_;
};

/// Returns " | 20 s left" for work of which `done` parts of `total` took
/// `seconds`; "" if none is done.
std::string time_left_text(int64_t done, int64_t total, double seconds);

}  // namespace lockstep::cli
