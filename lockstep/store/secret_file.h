#pragma once

#include <optional>
#include <string>

#include "lockstep/store/identity.h"

namespace lockstep::store {

/// Of a file of this user that nobody else may read: 16 to 4096 bytes, the
/// line's end at its end not counted. Throws InvalidArgument.
JobSecret read_secret_file(const std::string& path);
/// Of an open file or pipe, which is closed then. Throws InvalidArgument.
JobSecret read_secret_fd(int fd);

/// For jobs on loopback: random, of this user on this host, kept in a folder
/// that nobody else may read; made if it is not there. Throws IoError.
JobSecret loopback_secret();

/// For who does without: everybody knows it.
JobSecret no_secret();

/// Where a job's secret may come from.
struct SecretSource {
  std::string file;  ///< empty: LOCKSTEP_SECRET_FILE
  int fd = -1;
  /// Also by LOCKSTEP_NO_SECRET=1.
  bool is_none = false;
};

/// The secret of a job whose store is at `host`, and whose agents or ranks
/// don't have it from each other. Without a source it is loopback_secret() if
/// `host` stands for loopback; else InvalidArgument says what to do.
JobSecret shared_secret(const SecretSource& source, const std::string& host);

}  // namespace lockstep::store
