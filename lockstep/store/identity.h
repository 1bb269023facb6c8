#pragma once

#include <string>

#include "lockstep/store/key.h"

namespace lockstep::store {

enum class Role : uint8_t { kAgent = 1, kWorker = 2 };

/// Who a client says it is. What follows from it is for the server to decide.
struct Identity {
  Role role = Role::kAgent;
  std::string run_id;  ///< of the job
  std::string name;    ///< for people: "node1 (agent 4711)"
  Token token = process_token();
  // Of a worker.
  int rank = 0;
  int world_size = 1;
  int round = 0;  ///< of the job's attempts

  std::string text() const;  ///< "rank 3, node1 (pid 12)", printable
};

/// What all of a job's agents know. Workers get keys that follow from it.
class JobSecret {
 public:
  /// Of any bytes.
  explicit JobSecret(std::string_view bytes);
  static JobSecret random();

  /// The key with which `identity` proves itself. A worker's is good for its
  /// rank in its round of its job, and tells nothing of the secret.
  Key key_of(const Identity& identity) const;

 private:
  Key root_;
};

}  // namespace lockstep::store
