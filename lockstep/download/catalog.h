#pragma once

#include <cstdint>
#include <string>
#include <vector>

namespace lockstep::download {

/// A file in an archive that is to be unpacked.
struct Member {
  std::string name;
  int64_t most_bytes;  ///< of a larger one, nothing is kept
};

/// A file on a server, whose content is known.
struct RemoteFile {
  std::string name;  ///< after the URL of the dataset, and in the folder
  int64_t bytes;
  /// As those who made the dataset have published it. It finds every damage;
  /// who the server is, its certificate tells.
  std::string md5;
  /// Of a .tar.gz: the folder in it that the members are in.
  std::string folder{};
  std::vector<Member> members{};  ///< none: the file is kept as it is
};

/// A dataset that can be downloaded.
struct RemoteDataset {
  std::string name;
  std::string url;  ///< that of a folder, with a slash at its end
  std::vector<RemoteFile> files;
};

/// cifar10, cifar100, mnist and fashion-mnist.
const std::vector<RemoteDataset>& datasets();

/// Throws InvalidArgument for an unknown name, suggesting the nearest.
const RemoteDataset& find_dataset(const std::string& name);

}  // namespace lockstep::download
