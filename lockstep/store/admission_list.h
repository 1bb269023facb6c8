#pragma once

#include <cstddef>
#include <map>
#include <optional>
#include <string>

#include "lockstep/store/handshake.h"

namespace lockstep::store {

/// Decides which clients are admitted, of those that have proven their key, and
/// counts their connections.
class AdmissionList {
 public:
  AdmissionList(std::string run_id, size_t most);

  /// Admits or refuses a client that has proven its key.
  AdmissionReply admit(const Identity& who);
  /// A connection of an admitted client was closed. Returns whether it was the
  /// last one of an agent.
  bool leave(const Identity& who);

  /// From now on the `world_size` workers of `round` are admitted, and those of
  /// former rounds are not. Returns whether the round is new. Throws CommError
  /// for an older round, and for the present one with another number of
  /// workers.
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
  std::map<Token, size_t> agents_;  // connections of each
  int round_ = -1;                  // none yet
  int world_size_ = 0;
  std::map<int, Rank> ranks_;  // of this round
};

}  // namespace lockstep::store
