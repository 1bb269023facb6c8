#pragma once

#include <string>

#include "lockstep/store/identity.h"

namespace lockstep::store {

/// Reads the secret from a file that only this user can read: 16 to 4096 bytes,
/// without the newline at the end. Throws InvalidArgument.
JobSecret read_secret_file(const std::string& path);
/// Reads the secret from an open file or pipe, and closes it. Throws
/// InvalidArgument.
JobSecret read_secret_fd(int fd);

/// Returns the secret for jobs on loopback: random bytes in a file on this host
/// that only this user can read. Creates the file if it is missing. Throws
/// IoError.
JobSecret loopback_secret();

/// Returns the constant that stands for no secret. It is publicly known.
JobSecret no_secret();

/// The source of the job's secret, as given by the user.
struct SecretSource {
  std::string file;  ///< empty: LOCKSTEP_SECRET_FILE
  int fd = -1;
  /// Whether the job has no secret. LOCKSTEP_NO_SECRET=1 has the same effect.
  bool is_none = false;
};

/// Returns the secret of a job whose store is at `host`. Without a source,
/// returns loopback_secret() if `host` is a loopback address, and otherwise
/// throws InvalidArgument, which says how to provide a secret.
JobSecret shared_secret(const SecretSource& source, const std::string& host);

}  // namespace lockstep::store
