#pragma once

#include <cstdint>
#include <functional>
#include <string>
#include <string_view>

namespace lockstep::download {

struct FetchOptions {
  /// Trusted certificates in PEM format. Empty: those of the system.
  std::string ca_file;
  double connect_timeout_s = 20;
  /// Time after which a transfer of less than one kilobyte per second is given
  /// up. Headers don't count.
  int stall_timeout_s = 30;
  /// Number of tries in a row without progress. Progress is a MiB, or a
  /// hundredth of the missing bytes. The wait before the second try is
  /// `backoff_s`, and doubles each time.
  int attempts = 5;
  double backoff_s = 1;
  /// Called at least once a second during a download.
  std::function<void(int64_t done_bytes, int64_t all_bytes)> progress;
  /// Called at least once a second. The download ends if it returns true.
  std::function<bool()> stop;
  /// Called with a line for the user that says why the download is tried again.
  std::function<void(const std::string&)> say;
};

/// Downloads `url` by HTTPS to `path`.part until that has `bytes` bytes. If it
/// has bytes of an earlier download, requests only the rest. The server must
/// support ranges (RFC 9110, 14), and its file must be unchanged: its ETag or
/// date is stored in `path`.part.version. Otherwise the download starts again.
/// Follows redirects only to HTTPS, and checks certificates.
///
/// Returns whether the file has bytes of an earlier download. Throws DataError
/// (kDownloadFailed, or kInterrupted if stop() returned true), and IoError if
/// the file can't be written. The bytes downloaded so far are kept.
bool fetch_file(const std::string& url, const std::string& path, int64_t bytes,
                const FetchOptions& options);

/// Returns the first 200 characters of a text from a server, an archive or a
/// library, in printable ASCII.
std::string shown(std::string_view text);

/// Return the paths of these two files.
std::string partial_path(const std::string& path);
std::string version_path(const std::string& path);

}  // namespace lockstep::download
