#pragma once

#include <map>
#include <string>

#include "lockstep/store/admission_list.h"
#include "lockstep/store/message.h"
#include "lockstep/store/table.h"

namespace lockstep::store {

/// What the store does with requests: holds the tables of agents and workers,
/// and decides what each client may do. It knows nothing about sockets.
class StoreService {
 public:
  StoreService(const std::string& run_id, size_t most_connections,
               const Limits& limits)
      : admissions(run_id, most_connections),
        agents_(limits),
        workers_(limits) {}

  /// Whether `request`, which waits for keys, has them.
  bool has_all(const Identity& who, const Request& request) const;
  /// Executes a request at once. If kGet or kWait ask for a key that is not
  /// there, the caller must wait first. A refusal is a reply, too.
  Reply answer(const Identity& who, const Request& request);
  /// As admissions.admit(). If an agent whose connections broke comes back, its
  /// last will is undone.
  AdmissionReply admit(const Identity& who);
  /// A connection of an admitted client was closed. Returns whether a last will
  /// was carried out because of that.
  bool leave(const Identity& who);
  /// Clears the table of the former round's workers. Throws CommError as
  /// AdmissionList does. Returns whether the round is new.
  bool begin_round(int round, int world_size);

  AdmissionList admissions;

 private:
  struct LastWill {
    std::string key, value;
    bool is_done = false;  // the key was set
  };

  Reply execute(const Identity& who, const Request& request);
  Table& table_of(const Identity& who);

  Table agents_;
  Table workers_;  // of this round
  std::map<Token, LastWill>
      last_wills_;  // of agents, also of those that are gone
};

}  // namespace lockstep::store
