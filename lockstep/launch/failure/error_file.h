#pragma once

#include <exception>
#include <optional>
#include <string>

namespace lockstep::launch {

/// Content of a worker's error file, in torchrun's format: {"message":
/// {"message": "...", "extraInfo": {"py_callstack": "...", "timestamp":
/// "seconds"}}}, or {"message": "..."}. Lockstep's programs add "lost_peer" and
/// "code", the name of the ErrorCode, to extraInfo.
struct ErrorRecord {
  std::string message;
  std::string callstack;
  double time_s = 0;  ///< since 1970
  /// The error says that another rank failed rather than this one.
  bool is_of_peer = false;
  std::string code;  ///< empty if the error is not a lockstep::Error
};

/// Reads `path`, which a broken or hostile program may have written. It accepts
/// only regular files of at most 1 MiB with strict JSON, and returns nullopt
/// for any other file.
std::optional<ErrorRecord> read_error_file(const std::string& path);

/// Writes `path` atomically. `exit_code` (negative: a signal) is left out if it
/// is 0. Throws IoError.
void write_error_file(const std::string& path, const ErrorRecord& record,
                      int exit_code = 0);

/// Writes the error that ends this program to $TORCHELASTIC_ERROR_FILE, where
/// its launcher finds it. Does nothing without a launcher. Never throws.
void record_error(const std::exception& error) noexcept;

}  // namespace lockstep::launch
