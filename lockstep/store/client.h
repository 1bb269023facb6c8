#pragma once

#include <chrono>
#include <memory>
#include <mutex>
#include <optional>
#include <string>
#include <vector>

#include "lockstep/store/channel.h"

namespace lockstep::store {

struct ClientOptions {
  std::string host;
  int port = 0;
  Identity who;
  Key key;
  /// How long to wait for the server to appear.
  std::chrono::milliseconds connect_time{30'000};
  /// How long the server may take to answer, in addition to the wait that a
  /// request asks for. Whose process ends closes its connections, so this is
  /// for a host that is cut off: long enough for one with more work than cores,
  /// whose threads may wait for seconds.
  std::chrono::milliseconds answer_time{60'000};
};

/// The server works, and refused this request.
class RequestRefused : public CommError {
 public:
  explicit RequestRefused(const Problem& problem) : CommError(problem) {}
};

/// A client of a job's store. Calls may come from several threads. Each call
/// has a connection of its own while it lasts, so a call that waits does not
/// delay others.
///
/// All calls throw CommError if the server is gone or does not answer, and
/// RequestRefused. No request is sent twice.
class Client {
 public:
  using Milliseconds = std::chrono::milliseconds;

  /// Connects, and waits for the server to appear. Throws Refused with its
  /// reason, Unreachable if it does not appear in time, and CommError if it has
  /// another secret or is not a store.
  explicit Client(ClientOptions options);
  ~Client();
  Client(const Client&) = delete;
  Client& operator=(const Client&) = delete;

  void set(const std::string& key, const std::string& value);
  /// Returns nothing if the key does not come in time.
  std::optional<std::string> get(const std::string& key,
                                 Milliseconds wait = Milliseconds(0));
  int64_t add(const std::string& key, int64_t value);
  /// As c10d's compareSet: returns the value that is there after the call.
  std::string compare_set(const std::string& key, const std::string& expected,
                          const std::string& value);
  bool has(const std::vector<std::string>& keys);
  /// Whether all keys come in time.
  bool wait(const std::vector<std::string>& keys, Milliseconds time);
  bool erase(const std::string& key);
  int64_t count();
  /// For agents: workers of this round are admitted from now on, and those of
  /// former rounds are not. Every agent calls this before it starts its
  /// workers.
  void begin_round(int round, int world_size);

  /// For agents: registers a last will. The server sets the key once it has no
  /// connection of this process any more. A later last will replaces this one.
  void set_last_will(const std::string& key, const std::string& value);

  /// The address of this host that the server sees.
  std::string own_host() const { return own_host_; }

 private:
  using Time = Channel::Time;
  std::unique_ptr<Channel> connect(Time deadline) const;
  std::unique_ptr<Channel> take();
  Reply ask(const Request& request);

  const ClientOptions options_;
  std::string own_host_;
  std::mutex mutex_;
  std::vector<std::unique_ptr<Channel>> idle_;
};

}  // namespace lockstep::store
