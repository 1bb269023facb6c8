#pragma once

#include <optional>
#include <string>

#include "lockstep/store/identity.h"

namespace lockstep::store {

/// Reads the secret from a file of this user that nobody else can read: 16 to
/// 4096 bytes, without the newline at the end. Throws InvalidArgument.
JobSecret read_secret_file(const std::string& path);
/// Reads the secret from an open file or pipe, and closes it. Throws
/// InvalidArgument.
JobSecret read_secret_fd(int fd);

/// The secret for jobs on loopback: random bytes in a file of this user on this
/// host that nobody else can read. Makes the file if it is missing. Throws
/// IoError.
JobSecret loopback_secret();

/// The constant that stands for no secret; everybody knows it.
JobSecret no_secret();

/// Where the user says that the job's secret is.
struct SecretSource {
  std::string file;  ///< empty: LOCKSTEP_SECRET_FILE
  int fd = -1;
  /// No secret is wanted. LOCKSTEP_NO_SECRET=1 says the same.
  bool is_none = false;
};

/// The secret of a job whose store is at `host`. Without a source, it is
/// loopback_secret() if `host` is a loopback address; otherwise InvalidArgument
/// says how to give one.
JobSecret shared_secret(const SecretSource& source, const std::string& host);

}  // namespace lockstep::store
