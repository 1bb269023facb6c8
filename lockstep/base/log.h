#pragma once

#include <string>
#include <string_view>
#include <vector>

namespace lockstep {

enum class LogLevel { kDebug, kInfo, kWarning, kError };

/// Returns the lowest level that is written. Its initial value comes from
/// LOCKSTEP_LOG_LEVEL: debug, info (the default), warning or error.
LogLevel log_level();
void set_log_level(LogLevel level);

/// Writes `[component] text` and a newline to stderr. Lines of different
/// threads do not mix.
void log(LogLevel level, std::string_view component, std::string_view text);
void log_debug(std::string_view component, std::string_view text);
void log_info(std::string_view component, std::string_view text);
void log_warning(std::string_view component, std::string_view text);
void log_error(std::string_view component, std::string_view text);

/// Writes a warning the first time that `key` is used.
void warn_once(std::string_view key, std::string_view component,
               std::string_view text);

/// Captures log lines in tests. For as long as it exists, lines of every level
/// are kept here instead of written, and every warn_once() key is new.
class LogCapture {
 public:
  LogCapture();
  ~LogCapture();
  LogCapture(const LogCapture&) = delete;
  LogCapture& operator=(const LogCapture&) = delete;
  std::vector<std::string> lines() const;
  /// Returns all lines, each followed by a newline.
  std::string text() const;
};

}  // namespace lockstep
