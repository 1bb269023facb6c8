#pragma once

#include <map>
#include <string>

#include "lockstep/download/catalog.h"

namespace lockstep::download {

/// Unpacks the members of `file`, a .tar.gz at `archive`, into the folder
/// `dir`, each under its own name. Returns their SHA-256 by name.
///
/// Nothing else is written: what an archive says of places, links, owners and
/// modes is not followed. A link, a path with "..", or one that begins with a
/// slash is refused; other plain files are passed over. A file that is in `dir`
/// already must be the same.
///
/// Throws DataError naming the archive, also if a member is missing or larger
/// than allowed.
std::map<std::string, std::string> unpack(const std::string& archive,
                                          const RemoteFile& file,
                                          const std::string& dir);

/// SHA-256 and MD5 of a file, in hex. They throw IoError.
std::string sha256_of_file(const std::string& path);
std::string md5_of_file(const std::string& path);

}  // namespace lockstep::download
