#pragma once

#include <cstdint>
#include <string>

#include "lockstep/base/stopwatch.h"

namespace lockstep::cli {

/// Tells on stdout how far a download is: in one line that is drawn again and
/// again on a terminal, in a line each tenth of the way elsewhere.
class DownloadProgress {
 public:
  DownloadProgress();
  /// A file of that name, from `url`, comes next.
  void begin(const std::string& name, const std::string& url);
  void show(int64_t done_bytes, int64_t all_bytes);
  /// A line of text, which leaves what is drawn alone.
  void say(const std::string& text);
  /// Leaves the last state of the drawn line.
  void end();

 private:
  bool is_terminal_;
  std::string name_;
  Stopwatch watch_;        ///< since the file began
  Stopwatch since_drawn_;  ///< terminals
  int64_t first_bytes_ = -1;
  int tenths_ = 0;
  bool has_drawn_ = false;
};

}  // namespace lockstep::cli
