#pragma once

#include <cstdint>
#include <functional>
#include <map>
#include <string>
#include <vector>

#include "lockstep/download/fetch_file.h"

namespace lockstep::download {

/// A file in an archive that is to be unpacked.
struct Member {
  std::string name;
  int64_t most_bytes;  ///< limit; a larger file is refused
};

/// A file on a server with known content.
struct RemoteFile {
  std::string name;  ///< appended to the dataset's URL; also its local name
  int64_t bytes;
  /// MD5 as published by the authors of the dataset. It detects damage. The
  /// server is authenticated by its certificate.
  std::string md5;
  /// Folder of the members inside a .tar.gz.
  std::string folder{};
  std::vector<Member> members{};  ///< empty: the file is not unpacked
};

/// A dataset that can be downloaded.
struct RemoteDataset {
  std::string name;
  std::string url;  ///< URL of a folder, with a slash at the end
  std::vector<RemoteFile> files;
};

/// Returns the datasets cifar10, cifar100, mnist and fashion-mnist.
const std::vector<RemoteDataset>& datasets();

struct DownloadOptions {
  std::string dir;  ///< created if it does not exist
  /// URL of a folder with the same files. Empty: the dataset's own URL.
  std::string mirror;
  /// Options for each file. `fetch.progress` is called with the sizes of one
  /// file.
  FetchOptions fetch;
  /// Time to wait for another process that downloads to the same folder.
  double lock_timeout_s = 3600;
  /// Called before a file is downloaded.
  std::function<void(const RemoteFile&, const std::string& url)> begin;
};

enum class Outcome { kDownloaded, kWasThere };

/// Downloads the files of `dataset` that are missing in a folder, checks them
/// and unpacks them. Also checks the existing files: files of the dataset by
/// their published checksum, and unpacked files by their SHA-256. The SHA-256
/// is stored next to them in DATASET.sha256, in the format of `sha256sum`. A
/// file appears under its name only if it is complete and correct. Existing
/// files that do not belong to the dataset are never replaced.
///
/// Only one process at a time works in a folder; others wait. Throws DataError
/// or IoError. After an error, the same call resumes the download.
Outcome download_dataset(const RemoteDataset& dataset,
                         const DownloadOptions& options);

/// Unpacks the members of `file`, a .tar.gz at `archive`, into the folder
/// `dir`, each under its own name. Returns their SHA-256 by name.
///
/// Writes nothing else, and ignores the paths, owners and modes in the archive.
/// Refuses links, devices, paths with "..", and paths that begin with a slash.
/// Skips other plain files. A member that already exists in `dir` must be the
/// same.
///
/// Throws DataError naming the archive if it can't be read, or if a member is
/// missing or larger than allowed.
std::map<std::string, std::string> unpack(const std::string& archive,
                                          const RemoteFile& file,
                                          const std::string& dir);

}  // namespace lockstep::download
