#pragma once

#include <chrono>
#include <optional>
#include <string>

#include "lockstep/base/error.h"
#include "lockstep/base/file_descriptor.h"
#include "lockstep/store/handshake.h"
#include "lockstep/store/message.h"
#include "lockstep/store/socket_address.h"
#include "lockstep/store/wire.h"

namespace lockstep::store {

/// A refusal of this client by a server that knows the secret.
class Refused : public CommError {
 public:
  Refused(Admission admission, const Problem& problem)
      : CommError(problem), admission_(admission) {}
  Admission admission() const { return admission_; }

 private:
  Admission admission_;
};

/// A connection that the other end closed, or that broke.
class Disconnected : public CommError {
 public:
  explicit Disconnected(const Problem& problem) : CommError(problem) {}
};

/// An answer that did not come in time.
class TimedOut : public CommError {
 public:
  explicit TimedOut(const Problem& problem) : CommError(problem) {}
};

/// An address at which no process listens, or that closes connections at once.
/// The server may still start.
class Unreachable : public CommError {
 public:
  explicit Unreachable(const Problem& problem) : CommError(problem) {}
};

/// The client's end of one connection. One thread may use it at a time. It
/// can't be used after an exception.
class Channel {
 public:
  using Time = std::chrono::steady_clock::time_point;

  /// Does the handshake over `socket`. Throws Refused, Disconnected, TimedOut,
  /// or CommError if the other end has another secret or is not a store.
  Channel(FileDescriptor socket, const Identity& who, const Key& key,
          Time deadline);

  /// Sends a request and returns the reply. Throws TimedOut if it does not come
  /// in time.
  Reply ask(const Request& request, Time deadline);
  /// Returns false if the server has closed the connection.
  bool is_alive() const;
  SocketAddress own_address() const {
    return SocketAddress::of_socket(socket_.get());
  }

 private:
  void send(std::string_view bytes, Time deadline);
  std::string receive(Time deadline);
  void wait_for(short event, Time deadline) const;

  FileDescriptor socket_;
  FrameReader in_{kMostHandshakeBytes};
  std::optional<Session> session_;
  const Limits limits_{};
};

}  // namespace lockstep::store
