#pragma once

#include <cstdint>
#include <string>
#include <vector>

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

}  // namespace lockstep::download
