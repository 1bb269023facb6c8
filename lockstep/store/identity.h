#pragma once

#include <string>

#include "lockstep/store/key.h"

namespace lockstep::store {

enum class Role : uint8_t { kAgent = 1, kWorker = 2 };

/// The identity that a client claims. The server decides what it may do.
struct Identity {
  Role role = Role::kAgent;
  std::string run_id;  ///< id of the job
  std::string name;    ///< for people: "node1 (agent 4711)"
  Token token = process_token();
  /// Incarnation of the store that the client belongs to. Zeros: any.
  Token incarnation{};
  // Only for workers.
  int rank = 0;
  int world_size = 1;
  int round = 0;  ///< the job's attempt

  std::string text() const;  ///< "rank 3, node1 (pid 12)", printable
  /// Returns the name of the key with which it proves itself: that of all
  /// agents, or that of one rank in one round of one job.
  std::string key_name() const;
};

/// The secret that all agents of a job know. Workers get only keys that are
/// derived from it.
class JobSecret {
 public:
  /// Makes a secret from any bytes.
  explicit JobSecret(std::string_view bytes);
  static JobSecret random();

  /// Returns the key of that name, which reveals nothing about the secret.
  Key key_named(std::string_view name) const;
  Key key_of(const Identity& identity) const {
    return key_named(identity.key_name());
  }

 private:
  Key root_;
};

}  // namespace lockstep::store
