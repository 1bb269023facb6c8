#pragma once

#include <map>
#include <string>

#include "lockstep/store/admission_list.h"
#include "lockstep/store/message.h"
#include "lockstep/store/table.h"

namespace lockstep::store {

/// Executes the requests of a store. It holds the tables of agents and workers,
/// and decides what each client may do. It knows nothing about sockets.
class StoreService {
 public:
  StoreService(const std::string& run_id, size_t most_connections,
               const Limits& limits)
      : admissions(run_id, most_connections),
        agents_(limits),
        workers_(limits) {}

  /// Returns whether all keys that `request` waits for are set.
  bool has_all(const Identity& who, const Request& request) const;
  /// Executes a request at once. If kGet or kWait asks for a key that is not
  /// set, the caller must wait first. A refusal is returned as a reply.
  Reply answer(const Identity& who, const Request& request);
  /// Calls admissions.admit(). If an agent reconnects after its connections
  /// broke, its last will is undone.
  AdmissionReply admit(const Identity& who);
  /// Notes that a connection of an admitted client was closed. Returns whether
  /// this caused a last will to be carried out.
  bool leave(const Identity& who);
  /// Begins a round, and clears the workers' table if the round is new. Returns
  /// whether it is new. Throws CommError as AdmissionList does.
  bool begin_round(int round, int world_size);

  AdmissionList admissions;

 private:
  struct LastWill {
    std::string key, value;
    bool is_done = false;  // whether the key was set
  };

  Reply execute(const Identity& who, const Request& request);
  Table& table_of(const Identity& who);

  Table agents_;
  Table workers_;  // for the current round
  std::map<Token, LastWill>
      last_wills_;  // of agents, including those that are gone
};

}  // namespace lockstep::store
