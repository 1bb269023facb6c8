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

/// The server knows the secret, and said no.
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

/// Nothing came in time.
class TimedOut : public CommError {
 public:
  explicit TimedOut(const Problem& problem) : CommError(problem) {}
};

/// Nobody listens there, or nobody that keeps a connection: it may come yet.
class Unreachable : public CommError {
 public:
  explicit Unreachable(const Problem& problem) : CommError(problem) {}
};

/// A client's end of one connection. For one thread at a time. After an
/// exception it is of no use any more.
class Channel {
 public:
  using Time = std::chrono::steady_clock::time_point;

  /// Shakes hands over `socket`. Throws Refused, Disconnected, TimedOut, or
  /// CommError for another secret and for what is no server of the store.
  Channel(FileDescriptor socket, const Identity& who, const Key& key,
          Time deadline);

  /// Throws TimedOut if there is no reply in time.
  Reply ask(const Request& request, Time deadline);
  /// Nothing was heard of the server that was not asked for: its end.
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
