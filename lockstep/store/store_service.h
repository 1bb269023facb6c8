#pragma once

#include <map>
#include <string>

#include "lockstep/store/admission_list.h"
#include "lockstep/store/message.h"
#include "lockstep/store/table.h"

namespace lockstep::store {

/// What a job's agents and workers keep in the store, and what each of them may
/// do with it. Knows nothing of sockets.
class StoreService {
 public:
  StoreService(const std::string& run_id, size_t most_connections,
               const Limits& limits)
      : admissions(run_id, most_connections),
        agents_(limits),
        workers_(limits) {}

  /// Whether `request`, which waits for keys, has them.
  bool has_all(const Identity& who, const Request& request) const;
  /// Does at once what is asked for; kGet and kWait of a key that isn't there
  /// are for the caller to wait for. A refusal is a reply as well.
  Reply answer(const Identity& who, const Request& request);
  /// As admissions.admit(). An agent whose connections broke, and that comes
  /// back, is no longer gone.
  AdmissionReply admit(const Identity& who);
  /// One connection of an admitted client is closed. Returns whether a will
  /// came into force with that.
  bool leave(const Identity& who);
  /// Forgets what the former round's workers kept. Throws CommError as
  /// AdmissionList does. Returns whether it is a new one.
  bool begin_round(int round, int world_size);

  AdmissionList admissions;

 private:
  struct LastWill {
    std::string key, value;
    bool is_done = false;  // the key is there
  };

  Reply execute(const Identity& who, const Request& request);
  Table& table_of(const Identity& who);

  Table agents_;
  Table workers_;  // of this round
  std::map<Token, LastWill>
      last_wills_;  // of agents, those that are gone included
};

}  // namespace lockstep::store
