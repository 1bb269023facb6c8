#pragma once

#include <map>
#include <optional>
#include <string>
#include <vector>

#include "lockstep/store/identity.h"
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

}  // namespace lockstep::store
