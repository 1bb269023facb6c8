#pragma once

#include <cstdint>
#include <memory>
#include <optional>
#include <string>

#include "lockstep/launch/endpoint.h"

namespace lockstep::launch {

/// What the agents of a job tell each other: a c10d::TCPStore, which the
/// workers use as well (TORCHELASTIC_USE_AGENT_STORE).
///
/// Every call throws LaunchError when the store can't be reached any more, or
/// does not answer within 5 seconds. Calls from several threads take turns.
class JobStore {
 public:
  /// Serves the store on `listener`, a socket of listen_at(). Nothing is
  /// authenticated yet: whoever reaches the port can read and write.
  JobStore(const Endpoint& endpoint, FileDescriptor listener);
  /// Joins the one that is served at `endpoint`. Throws LaunchError if what
  /// listens there is no store.
  explicit JobStore(const Endpoint& endpoint);
  ~JobStore();
  JobStore(JobStore&&) noexcept;

  /// Keys have this before them from now on.
  void set_prefix(std::string prefix);

  void set(const std::string& key, const std::string& value);
  /// Nothing if it is not there, or is longer than 1 MiB.
  std::optional<std::string> get(const std::string& key);
  int64_t add(const std::string& key, int64_t value);
  /// Sets the value if there is none. Returns the one that is there now.
  std::string claim(const std::string& key, const std::string& value);

  const Endpoint& endpoint() const { return endpoint_; }

 private:
  struct Connection;
  Endpoint endpoint_;
  std::string prefix_;
  std::unique_ptr<Connection> connection_;
};

}  // namespace lockstep::launch
