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
  /// How long the server may take to be there.
  std::chrono::milliseconds connect_time{30'000};
  /// And to answer, beyond what was asked to wait for.
  std::chrono::milliseconds answer_time{10'000};
};

/// The server is well, and won't do what was asked for.
class RequestRefused : public CommError {
 public:
  explicit RequestRefused(const Problem& problem) : CommError(problem) {}
};

/// A client of a job's store. Calls may come from several threads: each has a
/// connection of its own meanwhile, so that one that waits holds up no other.
///
/// All of them throw CommError for a server that is gone or silent, and
/// RequestRefused. Nothing is asked twice.
class Client {
 public:
  using Milliseconds = std::chrono::milliseconds;

  /// Waits for the server. Throws Refused with its reason; Unreachable if it
  /// does not come; CommError if it knows another secret or is something else.
  explicit Client(ClientOptions options);
  ~Client();
  Client(const Client&) = delete;
  Client& operator=(const Client&) = delete;

  void set(const std::string& key, const std::string& value);
  /// Nothing if it isn't there in time.
  std::optional<std::string> get(const std::string& key,
                                 Milliseconds wait = Milliseconds(0));
  int64_t add(const std::string& key, int64_t value);
  /// As c10d's compareSet: the value that is there then.
  std::string compare_set(const std::string& key, const std::string& expected,
                          const std::string& value);
  bool has(const std::vector<std::string>& keys);
  /// Whether they come in time.
  bool wait(const std::vector<std::string>& keys, Milliseconds time);
  bool erase(const std::string& key);
  int64_t count();
  /// For agents: workers of this round may come now, those of former rounds no
  /// more. Every agent says so before it starts its own.
  void begin_round(int round, int world_size);

  /// For agents: the server sets the key once it has no connection of this
  /// process any more. A later will takes the place of this one.
  void set_last_will(const std::string& key, const std::string& value);

  /// The address of this host by which the server sees it.
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
