#pragma once

#include <atomic>
#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "lockstep/base/error.h"
#include "lockstep/launch/rendezvous/endpoint.h"
#include "lockstep/store/client.h"
#include "lockstep/store/server.h"

namespace lockstep::launch {

/// Options that identify the job of the store.
struct JobStoreOptions {
  std::string run_id;
  store::JobSecret secret;
  std::string name;  ///< name of this agent, for people
  /// Time for which an agent tries to reach the store, and after which a silent
  /// agent counts as lost.
  double keep_alive_s = 15;
  /// Incarnation of the store to connect to. Zeros: any.
  store::Token incarnation{};
};

/// The end of this node's part in a job: the job's store can't be reached any
/// more or was started again, or the job continued without this node.
class CutOff : public LaunchError {
 public:
  using LaunchError::LaunchError;
};

/// The key-value store of a job, for its agents: a server of store/, or a
/// client of the one that another agent serves. Only processes that know the
/// job's secret are served.
///
/// If the connection breaks or the store does not answer, every call tries
/// again for keep_alive_s, and then throws CutOff. Later calls throw it
/// immediately. Calls throw LaunchError if the store refuses the request.
/// Several threads may call them.
class JobStore {
 public:
  /// Serves the store on `listeners`, which come from listen_at().
  JobStore(const JobStoreOptions& options, const Endpoint& endpoint,
           std::vector<FileDescriptor> listeners);
  /// Connects to the store that another agent serves at `endpoint`. Throws
  /// store::Unreachable if no process listens there yet, store::Refused with
  /// the reason if it belongs to another job, and LaunchError if the other side
  /// has another secret or is not a store.
  JobStore(const JobStoreOptions& options, const Endpoint& endpoint);
  ~JobStore();
  JobStore(JobStore&&) noexcept;

  /// Sets the prefix of every key that does not begin with '/'.
  void set_prefix(std::string prefix);

  /// Sets the key. No other agent can change it afterwards.
  void set(const std::string& key, const std::string& value);
  /// Waits up to `wait_s` for the key. Returns nullopt if it does not arrive,
  /// or if its value is longer than 1 MiB.
  std::optional<std::string> get(const std::string& key, double wait_s = 0);
  /// Does the same, but stops waiting once the key `gone` exists, which means
  /// that the agent that would set `key` has ended. A key that it set before is
  /// found.
  std::optional<std::string> get_unless(const std::string& gone,
                                        const std::string& key, double wait_s);
  int64_t add(const std::string& key, int64_t value);
  /// Sets the value if the key does not exist yet. Returns the value that the
  /// key then has.
  std::string claim(const std::string& key, const std::string& value);
  /// Registers a last will: the server sets the key once this agent has ended,
  /// even after a SIGKILL. An agent has one last will. A later call replaces
  /// it.
  void set_last_will(const std::string& key);
  /// Returns true if all keys exist, or are set within `wait_s`.
  bool has_all(std::vector<std::string> keys, double wait_s = 0);
  /// Begins a round: the workers of this round are admitted from now on, and
  /// those of earlier rounds are not.
  void begin_round(int round, int world_size);

  double keep_alive_s() const { return options_.keep_alive_s; }
  const Endpoint& endpoint() const { return endpoint_; }
  /// Returns the address at which this host's workers reach the store.
  const Endpoint& address() const { return address_; }
  /// Returns this host's address as seen by the store's host.
  std::string own_host() const { return client_->own_host(); }
  /// Returns the incarnation of the store, to which its clients belong.
  const store::Token& incarnation() const { return client_->incarnation(); }
  /// Returns the key with which worker `rank` authenticates, in this round
  /// only.
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
  std::unique_ptr<store::Server> server_;  // destroyed after the client
  std::unique_ptr<store::Client> client_;
  // On the heap, so that a JobStore can be moved.
  std::unique_ptr<std::atomic<bool>> is_lost_;
};

}  // namespace lockstep::launch
