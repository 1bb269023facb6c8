#pragma once

#include <cstdint>
#include <functional>
#include <vector>

#include "lockstep/base/file_descriptor.h"
#include "lockstep/store/key.h"
#include "lockstep/tcp/handshake.h"

namespace lockstep::tcp {

/// The socket at which the other ranks of a group reach this rank, and the way
/// to theirs.
struct Door {
  FileDescriptor listening;  ///< non-blocking
  /// Returns a non-blocking socket that is connected to a rank, or will be.
  /// Closed if that is not possible now.
  std::function<FileDescriptor(int peer)> connect;
  std::vector<store::Key> keys;  ///< of the doors, by rank
  Data data = Data::kPlain;
};

/// A place for the sockets of a group's ranks on one host. Rank 0 makes it and
/// passes it to the others.
struct LocalPlace {
  static LocalPlace random();

  store::Token name{};
  store::Digest key{};
};

/// Returns the door of a rank on one host: a Unix socket without a file. Throws
/// CommError.
Door local_door(const LocalPlace& place, int rank, int ranks);

}  // namespace lockstep::tcp
