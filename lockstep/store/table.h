#pragma once

#include <map>
#include <optional>
#include <string>
#include <vector>

#include "lockstep/store/identity.h"
#include "lockstep/store/message.h"

namespace lockstep::store {

/// Keys and values, within limits. Every change throws CommError, whose message
/// is for the client, if it would go beyond them.
class Table {
 public:
  explicit Table(const Limits& limits) : limits_(limits) {}

  /// Null if it is not there.
  const std::string* find(const std::string& key) const;
  bool has_all(const std::vector<std::string>& keys) const;
  size_t size() const { return entries_.size(); }

  // With an `owner`, a key that is set belongs to the process that did so
  // first, and nobody else may change it: one agent can't speak for another.
  using Owner = std::optional<Token>;

  void set(const std::string& key, const std::string& value,
           const Owner& owner = {});
  /// c10d's: what is there then.
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

}  // namespace lockstep::store
