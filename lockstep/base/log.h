#pragma once

#include <string>
#include <string_view>
#include <vector>

namespace lockstep {

enum class LogLevel { kDebug, kInfo, kWarning, kError };

/// The least level that is written. Starts as LOCKSTEP_LOG_LEVEL says: debug,
/// info (the default), warning or error.
LogLevel log_level();
void set_log_level(LogLevel level);

/// Writes `[component] text` and a line's end to stderr, whole lines even from
/// several threads at once.
void log(LogLevel level, std::string_view component, std::string_view text);
void log_debug(std::string_view component, std::string_view text);
void log_info(std::string_view component, std::string_view text);
void log_warning(std::string_view component, std::string_view text);
void log_error(std::string_view component, std::string_view text);

/// A warning that is written the first time only that its `key` comes.
void warn_once(std::string_view key, std::string_view component,
               std::string_view text);

/// For tests: while it lives, lines of every level are kept here rather than
/// written, and every warn_once() key is new.
class LogCapture {
 public:
  LogCapture();
  ~LogCapture();
  LogCapture(const LogCapture&) = delete;
  LogCapture& operator=(const LogCapture&) = delete;
  std::vector<std::string> lines() const;
  /// All lines, each with its end.
  std::string text() const;
};

}  // namespace lockstep
