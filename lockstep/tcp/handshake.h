#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <utility>

#include "lockstep/base/file_descriptor.h"
#include "lockstep/store/secure_socket.h"

namespace lockstep::tcp {

/// The form of the data on a connection between two ranks.
enum class Data { kPlain, kEncrypted };

/// A connection between two ranks that do not know each other yet. Both prove
/// that they know the key of the rank that listens, and leave TLS if the data
/// are plain. `purpose` distinguishes connections between the same two ranks.
class Handshake {
 public:
  using Outcome = store::SecureSocket::Outcome;

  /// With `peer`, which listens. `key` is that of its address.
  static Handshake with(const std::string& purpose, int rank, int peer,
                        FileDescriptor socket, const store::Key& key,
                        Data data);
  /// With one that came to the address of `rank`. `key` is that of the address.
  static Handshake with_stranger(const std::string& purpose, int rank,
                                 int ranks, FileDescriptor socket,
                                 const store::Key& key, Data data);

  /// Goes on as far as the socket allows. After kDone, peer() is proven, and
  /// the socket can be taken. After kClosed and kRefused, it is of no use.
  Outcome advance();
  /// Returns the other rank. Nothing for a stranger that is not proven.
  const std::optional<int>& peer() const { return peer_; }
  int fd() const { return socket_.fd(); }
  /// Returns the events of epoll to wait for before the next advance().
  uint32_t events() const;
  store::SecureSocket take() { return std::move(socket_); }

 private:
  Handshake(store::SecureSocket socket, Data data)
      : socket_(std::move(socket)), data_(data) {}

  store::SecureSocket socket_;
  Data data_;
  std::string prefix_;  // of key names, for a stranger
  std::optional<int> peer_;
  bool is_proven_ = false;
  bool wants_write_ = false;
};

}  // namespace lockstep::tcp
