#pragma once

#include <cstddef>
#include <map>
#include <optional>
#include <string>

#include "lockstep/store/handshake.h"

namespace lockstep::store {

/// Decides who of those that know a key may come in, and knows who is there.
class AdmissionList {
 public:
  AdmissionList(std::string run_id, size_t most);

  /// For a client that has proven its key.
  AdmissionReply admit(const Identity& who);
  /// One connection of an admitted client is closed. Returns whether it was an
  /// agent's last one.
  bool leave(const Identity& who);

  /// Workers of round `round` may come now, `world_size` of them, and those of
  /// former rounds no more. Returns whether it is a new one. Throws CommError
  /// if it is an old one, or has begun with another number of workers.
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
