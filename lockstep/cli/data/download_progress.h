#pragma once

#include <cstdint>
#include <string>

#include "lockstep/base/stopwatch.h"

namespace lockstep::cli {

/// Shows the progress of a download on stdout: on a terminal in one line that
/// is redrawn, elsewhere in a line for each tenth of the file.
class DownloadProgress {
 public:
  DownloadProgress();
  /// Begins a file of this name, which comes from `url`.
  void begin(const std::string& name, const std::string& url);
  void show(int64_t done_bytes, int64_t all_bytes);
  /// Prints a line of text without overwriting the drawn line.
  void say(const std::string& text);
  /// Ends the drawn line in its last state.
  void end();

 private:
  bool is_terminal_;
  std::string name_;
  Stopwatch watch_;        ///< since the file began
  Stopwatch since_drawn_;  ///< for terminals
  int64_t first_bytes_ = -1;
  int tenths_ = 0;
  bool has_drawn_ = false;
};

}  // namespace lockstep::cli
