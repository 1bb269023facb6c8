#pragma once

#include <chrono>
#include <optional>
#include <string>

#include "lockstep/base/file_descriptor.h"
#include "lockstep/store/hello.h"
#include "lockstep/store/message.h"
#include "lockstep/store/secure_socket.h"
#include "lockstep/store/wire.h"

namespace lockstep::store {

/// The server's end of one connection: its socket, the bytes that are not yet
/// processed or sent, and the stage of the handshake.
class Connection {
 public:
  using Time = std::chrono::steady_clock::time_point;
  using Number = uint64_t;

  Connection(Number number, FileDescriptor socket,
             SecureSocket::FindKey find_key, Time now);

  Number number() const { return number_; }  ///< never reused

  int fd() const { return socket_.fd(); }
  const std::string& address() const { return address_; }
  Time since() const { return since_; }

  /// Does the handshake, and then reads available bytes. Returns false at the
  /// end of the connection. Throws CommError if the client does not know its
  /// key, or if what arrives is not what it sent.
  bool read_some();
  /// Writes as much as the socket takes. Returns false if the connection is
  /// broken.
  bool write_some();
  bool has_output() const { return wants_write_ || written_ < out_.size(); }
  void put(const std::string& body) { out_ += framed(body); }
  /// Returns the name of the key that the client has proven.
  const std::string& key_name() const { return socket_.key_name(); }
  bool next_frame(std::string& body) { return in_.next(body); }
  void set_most_bytes(size_t most) { in_.set_most(most); }

  enum class Stage { kHandshake, kHello, kOpen, kLeaving };
  Stage stage = Stage::kHandshake;
  Identity who;     ///< proven from kOpen on
  Token channel{};  ///< channel that uses this connection
  /// The request that waits for a key. No other request is read meanwhile.
  std::optional<Request> waiting;
  Time deadline{};  ///< of the waiting request

 private:
  bool shake_hands();

  const Number number_;
  SecureSocket socket_;
  std::string address_;
  Time since_;
  FrameReader in_;
  std::string out_;
  size_t written_ = 0;
  bool wants_write_ = false;  // for the handshake
};

}  // namespace lockstep::store
