#pragma once

#include <exception>
#include <optional>
#include <string>

namespace lockstep::launch {

/// What a worker left in its error file, in torchrun's form: {"message":
/// {"message": "...", "extraInfo": {"py_callstack": "...", "timestamp":
/// "seconds"}}}, or {"message": "..."}. Lockstep's programs add "lost_peer" and
/// "code", the name of the ErrorCode, to extraInfo.
struct ErrorRecord {
  std::string message;
  std::string callstack;
  double time_s = 0;  ///< since 1970
  /// The error says that another rank failed, and not this one.
  bool is_of_peer = false;
  std::string code;  ///< empty: no lockstep::Error
};

/// Reads `path`, which a broken or hostile program may have written: no more
/// than 1 MiB, regular files only, strict JSON. Returns nothing for any other
/// file.
std::optional<ErrorRecord> read_error_file(const std::string& path);

/// Writes `path` atomically; `exit_code` (negative: a signal) is left out if it
/// is 0. Throws IoError.
void write_error_file(const std::string& path, const ErrorRecord& record,
                      int exit_code = 0);

/// Writes the error that ends this program to $TORCHELASTIC_ERROR_FILE, where
/// its launcher finds it. Without a launcher it does nothing; it never throws.
void record_error(const std::exception& error) noexcept;

}  // namespace lockstep::launch
