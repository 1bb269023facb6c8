#pragma once

#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "lockstep/base/file_descriptor.h"
#include "lockstep/base/stopwatch.h"
#include "lockstep/launch/output/console.h"

namespace lockstep::launch {

/// A log file of the agent. If it can't be written any more, a warning says so,
/// and training continues without it.
class LogFile {
 public:
  LogFile() = default;  ///< no file
  /// Opens the file, or creates it. Throws IoError.
  explicit LogFile(std::string path);

  void write(std::string_view bytes);
  void close() { file_.close(); }
  /// Gives the file to a worker, which then writes to it directly.
  FileDescriptor release() { return std::move(file_); }

 private:
  std::string path_;
  FileDescriptor file_;
};

/// A log file that gets a copy of the lines that contain one of some texts. The
/// streams of several workers may use the same file.
class FilteredLog {
 public:
  FilteredLog() = default;  ///< copies nothing
  /// Opens the file, or creates it. Throws IoError.
  FilteredLog(std::string path, std::vector<std::string> texts);

  void add(std::string_view label, std::string_view line);

 private:
  LogFile file_;
  std::vector<std::string> texts_;
};

/// Splits a worker's output into lines and passes them to a console, each with
/// a label before it. Lines of different workers are never mixed.
///
/// Text that ends in a carriage return (a progress bar) becomes a line at most
/// once a second. A line of more than 64 KiB is split into pieces.
class LineOutput {
 public:
  LineOutput(Console& console, std::string label, FilteredLog filtered = {})
      : console_(console),
        label_(std::move(label)),
        filtered_(std::move(filtered)) {}

  /// Changes the label when the worker gets another rank.
  void relabel(std::string label) { label_ = std::move(label); }
  void add(std::string_view bytes);
  /// Shows the last line even if it has no newline.
  void finish();

 private:
  void end_line();
  void end_of_rewrite();
  void emit(std::string_view line);

  Console& console_;
  std::string label_;
  FilteredLog filtered_;
  std::string line_;
  bool may_rewrite_ = false;  // the line so far ends in a carriage return
  bool has_shown_ = false;
  Stopwatch since_shown_;
};

/// Destination of a worker's stdout or stderr.
struct StreamPlan {
  std::string log_path;        ///< empty: no log file
  bool is_redirected = false;  ///< the worker writes to the file directly
  bool is_shown = true;
  bool is_raw = false;  ///< byte by byte; no other worker writes there
  std::string label;
  std::string filtered_path{};         ///< file for shown lines that contain
  std::vector<std::string> filters{};  ///< one of these; empty: none
};

/// Passes a worker's stdout or stderr to the console and to its log file. The
/// last bytes are kept for the report of a failure.
class WorkerStream {
 public:
  /// Opens the log file. Throws IoError.
  WorkerStream(StreamPlan plan, Console& console);

  /// The descriptor that the worker writes to. Call close_worker_end() once the
  /// worker has it.
  int worker_end() const { return worker_end_.get(); }
  void close_worker_end() { worker_end_.close(); }

  void relabel(std::string label) { lines_.relabel(std::move(label)); }

  /// Returns the descriptor to poll. It is negative at the end of the stream,
  /// or if the worker writes directly to a file.
  int fd() const { return read_.get(); }
  /// Returns true if the stream is open and the console has room.
  bool wants_more() const { return read_.is_open() && !console_.is_full(); }
  /// Reads the available bytes.
  void read_some();
  /// Shows the last line, even if it has no newline, and closes the stream.
  /// Must be called at the latest when all writers are gone.
  void finish();

  std::vector<std::string> last_lines(size_t count) const;

 private:
  void take(std::string_view bytes);

  StreamPlan plan_;
  Console& console_;
  LineOutput lines_;
  FileDescriptor read_;
  FileDescriptor worker_end_;
  LogFile log_;
  std::string tail_;
};

}  // namespace lockstep::launch
