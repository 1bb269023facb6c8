#pragma once

#include <map>
#include <string>

#include "lockstep/download/catalog.h"

namespace lockstep::download {

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

/// Return the SHA-256 and the MD5 of a file in hex. Throw IoError.
std::string sha256_of_file(const std::string& path);
std::string md5_of_file(const std::string& path);

}  // namespace lockstep::download
