#pragma once

#include <chrono>
#include <memory>
#include <mutex>
#include <optional>
#include <string>
#include <vector>

#include "lockstep/base/error.h"
#include "lockstep/store/hello.h"
#include "lockstep/store/message.h"
#include "lockstep/store/socket_address.h"

namespace lockstep::store {

struct ClientOptions {
  std::string host;
  int port = 0;
  Identity who;
  Key key;
  /// Time to wait for the server to start.
  std::chrono::milliseconds connect_time{30'000};
  /// Time that the server may take to answer, in addition to the wait that a
  /// request asks for. Until then, the request is repeated over new
  /// connections. It is long enough for a network that fails for a while, and
  /// for a host with more work than cores, where threads may wait for seconds.
  std::chrono::milliseconds answer_time{60'000};
};

/// A refusal of this client by a server that knows the secret.
class Refused : public CommError {
 public:
  Refused(Admission admission, const Problem& problem)
      : CommError(problem), admission_(admission) {}
  Admission admission() const { return admission_; }

 private:
  Admission admission_;
};

/// An address at which no process listens, or that closes connections at once.
/// Or a server that did not answer in time. It may still start, or come back.
class Unreachable : public CommError {
 public:
  using CommError::CommError;
};

/// A refusal of one request by a working server.
class RequestRefused : public CommError {
 public:
  using CommError::CommError;
};

/// A client of a job's store. Calls may come from several threads. Each call
/// uses its own connection, so a call that waits does not delay others.
///
/// If a connection breaks or the server does not answer, the client connects
/// again and repeats the request. The server executes it only once. All calls
/// throw Unreachable if that did not succeed in time, Refused if the server was
/// started again (what it had stored is lost), RequestRefused if it refuses the
/// request, and CommError if the other end is not the job's store.
class Client {
 public:
  using Milliseconds = std::chrono::milliseconds;

  /// Connects, and waits for the server to start. Throws Refused with its
  /// reason, Unreachable if it does not start in time, and CommError if it has
  /// another secret or is not a store.
  explicit Client(ClientOptions options);
  ~Client();
  Client(const Client&) = delete;
  Client& operator=(const Client&) = delete;

  void set(const std::string& key, const std::string& value);
  /// Returns the value of the key, or nothing if it is not set in time.
  std::optional<std::string> get(const std::string& key,
                                 Milliseconds wait = Milliseconds(0));
  int64_t add(const std::string& key, int64_t value);
  /// Works as c10d's compareSet: returns the value after the call.
  std::string compare_set(const std::string& key, const std::string& expected,
                          const std::string& value);
  bool has(const std::vector<std::string>& keys);
  /// Returns whether all keys are set in time.
  bool wait(const std::vector<std::string>& keys, Milliseconds time);
  bool erase(const std::string& key);
  int64_t count();
  /// Admits the workers of this round from now on, and no longer those of
  /// earlier rounds. Every agent calls this before it starts its workers.
  void begin_round(int round, int world_size);

  /// Registers a last will of an agent. The server sets the key when it has no
  /// more connections of this process. A later last will replaces this one.
  void set_last_will(const std::string& key, const std::string& value);

  /// Returns the address of this host on its connection to the server.
  std::string own_host() const { return own_host_; }
  /// Returns the incarnation of the server.
  const Token& incarnation() const { return options_.who.incarnation; }

 private:
  class Link;
  struct Channel;
  using Time = std::chrono::steady_clock::time_point;
  std::unique_ptr<Link> connect(const Token& channel, Time deadline) const;
  std::unique_ptr<Channel> take();
  Reply exchange(Channel& channel, Request request) const;
  Reply ask(const Request& request);

  // Not changed after the first connection.
  ClientOptions options_;
  std::string own_host_;
  std::optional<SocketAddress> address_;  // of the server

  std::mutex mutex_;
  std::vector<std::unique_ptr<Channel>> idle_;
};

}  // namespace lockstep::store
