#pragma once

#include <cstddef>
#include <map>
#include <optional>
#include <string>

#include "lockstep/store/handshake.h"

namespace lockstep::store {

/// Decides which of the clients that have proven their key are admitted, and
/// counts their connections.
class AdmissionList {
 public:
  AdmissionList(std::string run_id, size_t most);

  /// Admits or refuses a client that has proven its key.
  AdmissionReply admit(const Identity& who);
  /// Notes that a connection of an admitted client was closed. Returns whether
  /// it was the last connection of an agent.
  bool leave(const Identity& who);

  /// Admits the `world_size` workers of `round` from now on, and no longer
  /// those of earlier rounds. Returns whether the round is new. Throws
  /// CommError for an older round, and for the current one with another number
  /// of workers.
  bool begin_round(int round, int world_size);
  bool is_stale(const Identity& who) const;

 private:
  struct Rank {
    Token token;
    std::string text;
    size_t connections = 0;
  };
  std::optional<AdmissionReply> refusal(const Identity& who) const;

  const std::string run_id_;
  const size_t most_;
  size_t connections_ = 0;
  std::map<Token, size_t> agents_;  // number of connections
  int round_ = -1;                  // -1: no round has begun
  int world_size_ = 0;
  std::map<int, Rank> ranks_;  // of this round
};

}  // namespace lockstep::store
