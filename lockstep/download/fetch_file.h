#pragma once

#include <cstdint>
#include <functional>
#include <string>

namespace lockstep::download {

struct FetchOptions {
  /// Certificates to trust, PEM; empty: those of the system.
  std::string ca_file;
  double connect_timeout_s = 20;
  /// A transfer of less than a kilobyte in each second for so long is given up.
  /// Headers don't count.
  int stall_timeout_s = 30;
  /// Tries in turn without progress. Progress is a MiB, or a hundredth of what
  /// is missing. The wait before the second try is `backoff_s`, then twice as
  /// long each time.
  int attempts = 5;
  double backoff_s = 1;
  /// Called at least once a second while something is under way.
  std::function<void(int64_t done_bytes, int64_t all_bytes)> progress;
  /// Whether to end: polled at least once a second.
  std::function<bool()> stop;
  /// A line for the user: why it is tried again.
  std::function<void(const std::string&)> say;
};

/// Downloads `url` by HTTPS to `path`.part, until that has `bytes` bytes. What
/// is in it from before is kept, and the rest asked for, if the server can send
/// a part of a file (RFC 9110, 14) and its file is still the same: its ETag or
/// date is in `path`.part.version. Otherwise it begins anew. Redirections are
/// followed to HTTPS only, and certificates are checked.
///
/// Returns whether bytes from before are in the file. Throws DataError
/// (kDownloadFailed; kInterrupted if stop() said so), IoError if the file can't
/// be written; what was downloaded stays there.
bool fetch_file(const std::string& url, const std::string& path, int64_t bytes,
                const FetchOptions& options);

/// The files above.
std::string partial_path(const std::string& path);
std::string version_path(const std::string& path);

}  // namespace lockstep::download
