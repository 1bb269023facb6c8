#pragma once

#include <chrono>
#include <functional>
#include <span>
#include <string>
#include <vector>

#include "lockstep/base/file_descriptor.h"
#include "lockstep/store/key.h"
#include "lockstep/store/secure_socket.h"
#include "lockstep/tcp/door.h"

namespace lockstep::tcp {

/// Returns this host's address in the network of `peer` (a name or an address):
/// "127.0.0.1" for the host itself. Sends nothing. Throws CommError if there is
/// no route to `peer`.
std::string local_address_towards(const std::string& peer);

/// Listens for the other ranks of a group until all are connected.
///
/// Each rank listens, passes its announcement to the others (through the job's
/// store, which only the job's ranks can read), and connects to the ranks below
/// it. The announcement contains a random key, with which both ends of a
/// connection prove that they have read it (store::SecureSocket). Other
/// processes can't take the place of a rank, and a flood of connections keeps
/// no rank out. After that, the data are plain, or stay encrypted if all ranks
/// ask for it.
class Listener {
 public:
  using Time = std::chrono::steady_clock::time_point;

  /// Listens at `host`, or at the addresses of the network interface
  /// `interface` if one is named. Throws CommError.
  Listener(const std::string& host, const std::string& interface,
           Data data = Data::kPlain);

  /// Returns "ADDRESS PORT KEY plain", or "... encrypted".
  std::string announcement() const;

  /// Returns a socket for each other rank, by rank, and a closed one for this
  /// rank. `announcements` are the announcements of all ranks. `is_over` is
  /// called every half second and returns whether to give up. Throws CommError
  /// naming the ranks that did not connect before `deadline`, and
  /// InvalidArgument if only some ranks ask for encryption.
  std::vector<store::SecureSocket> connect(
      int rank, std::span<const std::string> announcements, Time deadline,
      const std::function<bool()>& is_over);

  /// Passes the listening socket on, for what comes after connect().
  Door door(std::span<const std::string> announcements) &&;

 private:
  FileDescriptor socket_;
  const store::Key key_ = store::Key::random();
  const Data data_;
};

}  // namespace lockstep::tcp
