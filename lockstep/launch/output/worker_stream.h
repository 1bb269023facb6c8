#pragma once

#include <optional>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "lockstep/base/file_descriptor.h"
#include "lockstep/launch/output/console.h"
#include "lockstep/launch/output/line_output.h"

namespace lockstep::launch {

/// Where a worker's stdout or stderr goes.
struct StreamPlan {
  std::string log_path;        ///< empty: no file
  bool is_redirected = false;  ///< to the file alone, without us in between
  bool is_shown = true;
  bool is_raw = false;  ///< bytes as they come: it has the console to itself
  std::string label;
};

/// A worker's stdout or stderr on its way to the console and to its log file.
/// Its last bytes are kept for a failure's report.
class WorkerStream {
 public:
  /// Opens the log file. Throws IoError.
  WorkerStream(StreamPlan plan, Console& console);

  /// What the worker writes to; close_worker_end() once it has it.
  int worker_end() const { return worker_end_.get(); }
  void close_worker_end() { worker_end_.close(); }

  void relabel(std::string label) { lines_.relabel(std::move(label)); }

  /// What to poll; negative once it is at its end, or if there is nothing.
  int fd() const { return read_.get(); }
  /// There is room on the console for more of it.
  bool wants_more() const { return read_.is_open() && !console_.is_full(); }
  /// Takes what is there.
  void read_some();
  /// At the latest when its writers are gone: the last line, even if it has no
  /// end.
  void finish();

  std::vector<std::string> last_lines(size_t count) const;

 private:
  void take(std::string_view bytes);
  void write_log(std::string_view bytes);

  StreamPlan plan_;
  Console& console_;
  LineOutput lines_;
  FileDescriptor read_;
  FileDescriptor worker_end_;
  FileDescriptor log_;
  std::string tail_;
};

}  // namespace lockstep::launch
