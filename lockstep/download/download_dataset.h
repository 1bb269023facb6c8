#pragma once

#include <functional>
#include <string>

#include "lockstep/download/catalog.h"
#include "lockstep/download/fetch_file.h"

namespace lockstep::download {

struct DownloadOptions {
  std::string dir;     ///< made if it is not there
  std::string mirror;  ///< URL of a folder with the same files; empty: its own
  /// `fetch.progress` is called with the sizes of one file.
  FetchOptions fetch;
  /// How long to wait for another process that downloads to the same folder.
  double lock_timeout_s = 3600;
  /// Called before a file is downloaded.
  std::function<void(const RemoteFile&, const std::string& url)> begin;
};

enum class Outcome { kDownloaded, kWasThere };

/// Gets the files of `dataset` into a folder: those that are not there already
/// are downloaded, checked and unpacked. What is there is checked as well: a
/// file of the dataset by its published checksum, unpacked files by their
/// SHA-256, which is kept beside them in DATASET.sha256, as `sha256sum` reads
/// it. A file appears under its name only if it is whole and right; what is
/// there and is not the dataset's is never replaced.
///
/// Only one process at a time works in a folder; others wait. Throws DataError
/// or IoError; the same call goes on later.
Outcome download_dataset(const RemoteDataset& dataset,
                         const DownloadOptions& options);

}  // namespace lockstep::download
