#pragma once

#include <chrono>
#include <functional>
#include <span>
#include <string>
#include <vector>

#include "lockstep/base/file_descriptor.h"
#include "lockstep/store/key.h"
#include "lockstep/tcp/tls.h"

namespace lockstep::tcp {

/// Returns this host's address in the network of `peer` (a name or an address):
/// "127.0.0.1" for the host itself. Sends nothing. Throws CommError if there is
/// no route to `peer`.
std::string local_address_towards(const std::string& peer);

/// Listens for the other ranks of a group until all are connected.
///
/// Each rank listens, passes its announcement to the others (through the job's
/// store, which only the job's ranks can read), and connects to the ranks below
/// it. The announcement contains a random key. With it, a rank that connects
/// proves that it has read the announcement, and it gets a proof in return.
/// Other processes can't take the place of a rank. Later data is encrypted if
/// the environment asks for it (Tls). Otherwise it is neither encrypted nor
/// signed.
class Listener {
 public:
  using Time = std::chrono::steady_clock::time_point;

  /// Listens at `host`, or at the addresses of the network interface
  /// `interface` if one is named. Throws CommError.
  Listener(const std::string& host, const std::string& interface);

  /// Returns "ADDRESS PORT KEY".
  std::string announcement() const;

  /// Returns a socket for each other rank, by rank, and a closed one for this
  /// rank. `announcements` are the announcements of all ranks. `is_over` is
  /// called regularly and returns whether to give up. Throws CommError naming
  /// the ranks that did not connect before `deadline`, and InvalidArgument if
  /// the environment asks for TLS with invalid settings.
  std::vector<Socket> connect(int rank,
                              std::span<const std::string> announcements,
                              Time deadline,
                              const std::function<bool()>& is_over);

 private:
  FileDescriptor socket_;
  store::Digest key_;
};

}  // namespace lockstep::tcp
