#pragma once

#include <cstdint>
#include <string>
#include <vector>

namespace lockstep::cli {

/// A file on a server with known content.
struct RemoteFile {
  std::string name;  ///< appended to the dataset's URL; also its local name
  int64_t bytes;
  std::string sha256;
  /// Paths in a .tar.gz of the files to unpack, each in one folder. They are
  /// put beside the archive. Empty: the file is not unpacked.
  std::vector<std::string> members{};
};

/// A dataset that can be downloaded.
struct RemoteDataset {
  std::string name;
  std::string url;  ///< URL of a folder, with a slash at the end
  std::vector<RemoteFile> files;
};

/// Returns the datasets cifar10, cifar100, mnist and fashion-mnist.
const std::vector<RemoteDataset>& datasets();

/// Downloads the missing files of `dataset` from the folder `url` to the folder
/// `dir` with curl, checks them and unpacks archives with tar. Returns whether
/// any file was missing. Existing files are checked, too, and never replaced:
/// unpacked ones by DATASET.sha256, which `sha256sum --check` reads.
///
/// If a program is missing, prints commands that do the same. Throws DataError
/// (kInterrupted after a signal of InterruptScope) or IoError. The next call
/// continues the download.
bool fetch_dataset(const RemoteDataset& dataset, const std::string& dir,
                   const std::string& url);

}  // namespace lockstep::cli
