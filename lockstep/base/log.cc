#include "lockstep/base/log.h"

#include <array>
#include <atomic>
#include <cerrno>
#include <cstdlib>
#include <functional>
#include <memory>
#include <mutex>
#include <optional>
#include <set>
#include <unistd.h>
#include <utility>

#include "lockstep/base/terminal.h"
#include "lockstep/base/text.h"

namespace lockstep {
namespace {

constexpr std::array<std::string_view, 4> kLevelNames = {"debug", "info",
                                                         "warning", "error"};

struct State {
  std::mutex mutex;
  std::set<std::string, std::less<>> warned;
  std::set<std::string, std::less<>> warned_before_capture;
  std::optional<std::vector<std::string>> captured;
};

// Never destroyed: threads may still log while the process ends.
State& state() {
  static State& instance = *std::make_unique<State>().release();
  return instance;
}

void write_line(const std::string& line) {
  // One call per line, so that lines of different processes don't mix either.
  std::string_view rest = line;
  while (!rest.empty()) {
    const ssize_t written = ::write(STDERR_FILENO, rest.data(), rest.size());
    if (written < 0 && errno == EINTR) continue;
    if (written <= 0) return;  // there is no way to report this
    rest.remove_prefix(static_cast<size_t>(written));
  }
}

LogLevel level_of_environment() {
  const char* value = std::getenv("LOCKSTEP_LOG_LEVEL");
  if (value == nullptr || *value == '\0') return LogLevel::kInfo;
  for (size_t i = 0; i < kLevelNames.size(); ++i) {
    if (kLevelNames[i] == value) return static_cast<LogLevel>(i);
  }
  write_line(std::string("[log] LOCKSTEP_LOG_LEVEL is not a level; got '") +
             value + "'; " +
             did_you_mean(value, {kLevelNames.begin(), kLevelNames.end()}) +
             "\n");
  return LogLevel::kInfo;
}

std::atomic<LogLevel>& least_level() {
  static std::atomic<LogLevel> level{level_of_environment()};
  return level;
}

}  // namespace

LogLevel log_level() { return least_level(); }

void set_log_level(LogLevel level) { least_level() = level; }

void log(LogLevel level, std::string_view component, std::string_view text) {
  std::string line = "[";
  line.append(component).append("] ").append(text);
  const std::lock_guard lock(state().mutex);
  if (state().captured) {
    state().captured->push_back(std::move(line));
  } else if (level >= log_level()) {
    write_line(std::string(erase_unfinished_line(STDERR_FILENO)) + line + "\n");
  }
}

void log_debug(std::string_view component, std::string_view text) {
  log(LogLevel::kDebug, component, text);
}
void log_info(std::string_view component, std::string_view text) {
  log(LogLevel::kInfo, component, text);
}
void log_warning(std::string_view component, std::string_view text) {
  log(LogLevel::kWarning, component, text);
}
void log_error(std::string_view component, std::string_view text) {
  log(LogLevel::kError, component, text);
}

void warn_once(std::string_view key, std::string_view component,
               std::string_view text) {
  {
    const std::lock_guard lock(state().mutex);
    if (!state().warned.emplace(key).second) return;
  }
  log_warning(component, text);
}

LogCapture::LogCapture() {
  const std::lock_guard lock(state().mutex);
  state().captured.emplace();
  state().warned_before_capture = std::exchange(state().warned, {});
}

LogCapture::~LogCapture() {
  const std::lock_guard lock(state().mutex);
  state().captured.reset();
  state().warned = std::move(state().warned_before_capture);
}

std::vector<std::string> LogCapture::lines() const {
  const std::lock_guard lock(state().mutex);
  return state().captured.value_or(std::vector<std::string>{});
}

std::string LogCapture::text() const {
  std::string all;
  for (const std::string& line : lines()) all += line + "\n";
  return all;
}

}  // namespace lockstep
