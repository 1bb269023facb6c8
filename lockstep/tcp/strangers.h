#pragma once

#include <chrono>
#include <functional>
#include <list>
#include <optional>
#include <string>

#include "lockstep/base/event_loop.h"
#include "lockstep/store/key.h"
#include "lockstep/store/secure_socket.h"
#include "lockstep/tcp/handshake.h"

namespace lockstep::tcp {

/// Accepts connections at the address of a rank, and finds out which ranks they
/// come from. Any process may connect, so the number of connections that have
/// not proven that is limited. Beyond the limit, the oldest is closed.
class Strangers {
 public:
  /// Takes the connection of another rank, which `peer` has proven to be.
  using Join = std::function<void(int peer, store::SecureSocket socket)>;

  struct Address {
    std::string purpose;  ///< as for Handshake
    int rank = 0;
    int ranks = 0;
    int listening = -1;  ///< non-blocking socket; -1: nobody can come
    store::Key key;
    Data data = Data::kPlain;
    /// Time that a stranger has for its handshake. Without it, only the number
    /// of strangers is limited.
    std::optional<std::chrono::milliseconds> time{};
  };

  /// Accepts connections and calls `join` as long as `loop` runs, which must
  /// not run any more after this object is gone.
  Strangers(EventLoop& loop, Address address, Join join);
  ~Strangers() { close(); }
  Strangers(const Strangers&) = delete;
  Strangers& operator=(const Strangers&) = delete;

  /// Closes all of them, and accepts no more. The listening socket can then be
  /// closed.
  void close();

 private:
  struct Stranger {
    Handshake handshake;
    EventLoop::Time since;
  };
  using Place = std::list<Stranger>::iterator;

  void accept();
  void advance(Place stranger);
  void drop(Place stranger);
  void watch_deadlines();

  EventLoop& loop_;
  Address address_;
  const Join join_;
  std::list<Stranger> strangers_;  // oldest first
  bool is_watching_deadlines_ = false;
};

}  // namespace lockstep::tcp
