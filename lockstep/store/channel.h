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

/// The server knows the secret and refused this client.
class Refused : public CommError {
 public:
  Refused(Admission admission, const Problem& problem)
      : CommError(problem), admission_(admission) {}
  Admission admission() const { return admission_; }

 private:
  Admission admission_;
};

/// The connection was closed by the other end, or broke.
class Disconnected : public CommError {
 public:
  explicit Disconnected(const Problem& problem) : CommError(problem) {}
};

/// No answer came in time.
class TimedOut : public CommError {
 public:
  explicit TimedOut(const Problem& problem) : CommError(problem) {}
};

/// No process listens there, or it closes connections at once. The server may
/// still come.
class Unreachable : public CommError {
 public:
  explicit Unreachable(const Problem& problem) : CommError(problem) {}
};

/// The client's end of one connection. One thread may use it at a time. After
/// an exception it can't be used any more.
class Channel {
 public:
  using Time = std::chrono::steady_clock::time_point;

  /// Does the handshake over `socket`. Throws Refused, Disconnected, TimedOut,
  /// or CommError if the other side has another secret or is not a store.
  Channel(FileDescriptor socket, const Identity& who, const Key& key,
          Time deadline);

  /// Throws TimedOut if there is no reply in time.
  Reply ask(const Request& request, Time deadline);
  /// Whether the server has not closed the connection.
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
