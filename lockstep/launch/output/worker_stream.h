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
  bool is_redirected = false;  ///< the worker writes to the file itself
  bool is_shown = true;
  bool is_raw = false;  ///< byte by byte: no other worker writes there
  std::string label;
};

/// A worker's stdout or stderr on its way to the console and to its log file.
/// The last bytes are kept for the report of a failure.
class WorkerStream {
 public:
  /// Opens the log file. Throws IoError.
  WorkerStream(StreamPlan plan, Console& console);

  /// The descriptor that the worker writes to. Call close_worker_end() once the
  /// worker has it.
  int worker_end() const { return worker_end_.get(); }
  void close_worker_end() { worker_end_.close(); }

  void relabel(std::string label) { lines_.relabel(std::move(label)); }

  /// The descriptor to poll; negative at the end of the stream, or if the
  /// worker writes to a file itself.
  int fd() const { return read_.get(); }
  /// Whether the stream is open and the console has room.
  bool wants_more() const { return read_.is_open() && !console_.is_full(); }
  /// Reads what is there.
  void read_some();
  /// Shows the last line, even if it has no newline, and closes the stream. To
  /// be called at the latest when all writers are gone.
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
