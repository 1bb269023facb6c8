#pragma once

#include <atomic>
#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "lockstep/launch/rendezvous/endpoint.h"
#include "lockstep/store/client.h"
#include "lockstep/store/server.h"

namespace lockstep::launch {

/// Of the job whose store it is.
struct JobStoreOptions {
  std::string run_id;
  store::JobSecret secret;
  std::string name;  ///< of this agent, for people
};

/// What the agents of a job tell each other, and its workers each other: the
/// store of store/, which serves those who know the job's secret.
///
/// Every call throws LaunchError when the store can't be reached any more,
/// does not answer within 5 seconds or refuses. Calls may come from several
/// threads. One that was lost is lost for good: later calls throw at once.
class JobStore {
 public:
  /// Serves the store on `listeners`, of listen_at().
  JobStore(const JobStoreOptions& options, const Endpoint& endpoint,
           std::vector<FileDescriptor> listeners);
  /// Joins the one that is served at `endpoint`. Throws store::Unreachable if
  /// nobody is there yet, store::Refused with the reason if it is another
  /// job's, and LaunchError for another secret or something else.
  JobStore(const JobStoreOptions& options, const Endpoint& endpoint);
  ~JobStore();
  JobStore(JobStore&&) noexcept;

  /// Keys have this before them from now on, unless they begin with '/'.
  void set_prefix(std::string prefix);

  /// The key is this agent's from then on: no other can change it.
  void set(const std::string& key, const std::string& value);
  /// Waits so long for it. Nothing if it is not there then, or longer than 1
  /// MiB.
  std::optional<std::string> get(const std::string& key, double wait_s = 0);
  /// The same, but not once `gone` is there: who would set the key has ended.
  /// What it set before counts.
  std::optional<std::string> get_unless(const std::string& gone,
                                        const std::string& key, double wait_s);
  int64_t add(const std::string& key, int64_t value);
  /// Sets the value if there is none. Returns the one that is there now.
  std::string claim(const std::string& key, const std::string& value);
  /// Sets the key once this agent has ended, however it did; instead of the
  /// last one of which this was said.
  void set_last_will(const std::string& key);
  /// Whether all of them are there, or come within `wait_s`.
  bool has_all(std::vector<std::string> keys, double wait_s = 0);
  /// Lets workers of this round in, and those of former rounds no more.
  void begin_round(int round, int world_size);

  const Endpoint& endpoint() const { return endpoint_; }
  /// Where this host's workers reach the store.
  const Endpoint& address() const { return address_; }
  /// The address by which the store's host knows this one.
  std::string own_host() const { return client_->own_host(); }
  /// For the worker `rank` of a round; good for nothing else.
  store::Key worker_key(int rank, int round) const;

 private:
  template <class Act>
  auto use(Act act);
  std::string full(const std::string& key) const {
    return key.starts_with('/') ? key.substr(1) : prefix_ + key;
  }

  JobStoreOptions options_;
  Endpoint endpoint_, address_;
  std::string prefix_;
  std::unique_ptr<store::Server> server_;  // goes after the client
  std::unique_ptr<store::Client> client_;
  // In memory of its own, so that a store can be moved.
  std::unique_ptr<std::atomic<bool>> is_lost_;
};

}  // namespace lockstep::launch
