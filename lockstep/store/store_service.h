#pragma once

#include <cstddef>
#include <map>
#include <optional>
#include <string>
#include <vector>

#include "lockstep/store/hello.h"
#include "lockstep/store/message.h"

namespace lockstep::store {

/// Keys and values, within limits. A change that would exceed the limits throws
/// CommError; its message is sent to the client.
class Table {
 public:
  explicit Table(const Limits& limits) : limits_(limits) {}

  /// Returns the value of the key, or null if it is not set.
  const std::string* find(const std::string& key) const;
  bool has_all(const std::vector<std::string>& keys) const;
  size_t size() const { return entries_.size(); }

  // A key that is set with an `owner` belongs to the first process that set it.
  // No other process may change it, so one agent can't speak for another.
  using Owner = std::optional<Token>;

  void set(const std::string& key, const std::string& value,
           const Owner& owner = {});
  /// Works as c10d's compareSet: returns the value after the call.
  std::string compare_set(const std::string& key, const std::string& expected,
                          const std::string& value, const Owner& owner = {});
  int64_t add(const std::string& key, int64_t number, const Owner& owner = {});
  bool erase(const std::string& key, const Owner& owner = {});
  void clear();

 private:
  struct Entry {
    std::string value;
    Owner owner;
  };
  void check_owner(const std::string& key, const Owner& owner) const;
  void put(const std::string& key, const std::string& value,
           const Owner& owner);

  const Limits limits_;
  std::map<std::string, Entry> entries_;
  size_t bytes_ = 0;
};

/// Remembers the last change that each channel has made, so that a request that
/// is repeated because its answer was lost is not executed twice. Requests that
/// change nothing, and those that were refused, may be executed again.
class ReplyCache {
 public:
  /// Remembers the changes of at most `most` channels that have no connection.
  explicit ReplyCache(size_t most) : most_(most) {}

  /// Returns the reply to `request` if it was executed before.
  std::optional<Reply> find(const Token& channel, const Request& request) const;
  void keep(const Token& channel, const Request& request, const Reply& reply);
  /// Notes that the connection of the channel was closed.
  void close(const Token& channel);
  void clear();

 private:
  struct Change {
    uint64_t id = 0;
    int64_t number = 0;              // of the reply
    std::optional<uint64_t> closed;  // key in closed_
  };
  const size_t most_;
  std::map<Token, Change> changes_;
  std::map<uint64_t, Token> closed_;  // in the order in which they were closed
  uint64_t next_closed_ = 0;
};

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
  const Token incarnation_ = random_token();
  const size_t most_;
  size_t connections_ = 0;
  std::map<Token, size_t> agents_;  // number of connections
  int round_ = -1;                  // -1: no round has begun
  int world_size_ = 0;
  std::map<int, Rank> ranks_;  // of this round
};

/// Executes the requests of a store. It holds the tables of agents and workers,
/// and decides what each client may do. It knows nothing about sockets.
class StoreService {
 public:
  StoreService(const std::string& run_id, size_t most_connections,
               const Limits& limits)
      : admissions(run_id, most_connections),
        agents_{Table(limits), ReplyCache(most_connections)},
        workers_{Table(limits), ReplyCache(most_connections)} {}

  /// Returns whether all keys that `request` waits for are set.
  bool has_all(const Identity& who, const Request& request) const;
  /// Executes a request at once, or returns the reply that it got before. If
  /// kGet or kWait asks for a key that is not set, the caller must wait first.
  /// A refusal is returned as a reply.
  Reply answer(const Identity& who, const Token& channel,
               const Request& request);
  /// Calls admissions.admit(). If an agent reconnects after its connections
  /// broke, its last will is undone.
  AdmissionReply admit(const Identity& who);
  /// Notes that the connection of an admitted client's channel was closed.
  /// Returns whether it was the last connection of an agent with a last will.
  bool leave(const Identity& who, const Token& channel);
  /// Carries out the last will of an agent. Returns whether a key was set.
  bool carry_out_last_will(const Token& agent);
  /// Begins a round, and clears the workers' table if the round is new. Returns
  /// whether it is new. Throws CommError as AdmissionList does.
  bool begin_round(int round, int world_size);

  AdmissionList admissions;

 private:
  struct LastWill {
    std::string key, value;
    bool is_done = false;  // whether the key was set
  };

  struct Content {
    Table table;
    ReplyCache replies;
  };

  Reply execute(const Identity& who, const Request& request);
  Content& content_of(const Identity& who);

  Content agents_;
  Content workers_;  // for the current round
  std::map<Token, LastWill>
      last_wills_;  // of agents, including those that are gone
};

}  // namespace lockstep::store
