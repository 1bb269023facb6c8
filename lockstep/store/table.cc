#include "lockstep/store/table.h"

#include <algorithm>
#include <charconv>

#include <fmt/format.h>

#include "lockstep/base/error.h"

namespace lockstep::store {

const std::string* Table::find(const std::string& key) const {
  const auto found = entries_.find(key);
  return found == entries_.end() ? nullptr : &found->second.value;
}

bool Table::has_all(const std::vector<std::string>& keys) const {
  return std::all_of(keys.begin(), keys.end(),
                     [&](const auto& key) { return entries_.contains(key); });
}

void Table::set(const std::string& key, const std::string& value,
                const Owner& owner) {
  check_owner(key, owner);
  put(key, value, owner);
}

std::string Table::compare_set(const std::string& key,
                               const std::string& expected,
                               const std::string& value, const Owner& owner) {
  const std::string* current = find(key);
  if (current == nullptr && !expected.empty()) return expected;
  if (current != nullptr && *current != expected) return *current;
  set(key, value, owner);
  return value;
}

int64_t Table::add(const std::string& key, int64_t number, const Owner& owner) {
  int64_t sum = 0;
  if (const std::string* current = find(key)) {
    check_owner(key, owner);
    const char* end = current->data() + current->size();
    const auto [rest, error] = std::from_chars(current->data(), end, sum);
    if (error != std::errc() || rest != end) {
      throw CommError({.code = ErrorCode::kStoreRefused,
                       .what = "can't add to a key of the store",
                       .expected = "a whole number in it",
                       .got = fmt::format("{} bytes", current->size())});
    }
  }
  if (__builtin_add_overflow(sum, number, &sum)) {
    throw CommError({.code = ErrorCode::kStoreRefused,
                     .what = "a counter of the store overflows"});
  }
  // A counter has no owner, because all clients may add to it.
  put(key, std::to_string(sum), {});
  return sum;
}

bool Table::erase(const std::string& key, const Owner& owner) {
  check_owner(key, owner);
  const auto found = entries_.find(key);
  if (found == entries_.end()) return false;
  bytes_ -= key.size() + found->second.value.size();
  entries_.erase(found);
  return true;
}

void Table::clear() {
  entries_.clear();
  bytes_ = 0;
}

void Table::check_owner(const std::string& key, const Owner& owner) const {
  const auto found = entries_.find(key);
  if (found == entries_.end() || !found->second.owner ||
      found->second.owner == owner) {
    return;
  }
  throw CommError({.code = ErrorCode::kStoreRefused,
                   .what = "a key of the store belongs to another process",
                   .expected = "a key that this process made"});
}

void Table::put(const std::string& key, const std::string& value,
                const Owner& owner) {
  const auto found = entries_.find(key);
  const size_t former =
      found == entries_.end() ? 0 : key.size() + found->second.value.size();
  const size_t bytes = bytes_ - former + key.size() + value.size();
  if (bytes > limits_.total_bytes ||
      (former == 0 && entries_.size() >= limits_.keys)) {
    throw CommError({.code = ErrorCode::kStoreRefused,
                     .what = "the store is full",
                     .expected = fmt::format("{} keys and {} bytes at most",
                                             limits_.keys, limits_.total_bytes),
                     .got = "one more",
                     .fix = "erase what is not needed any more"});
  }
  bytes_ = bytes;
  if (found == entries_.end()) {
    entries_.emplace(key, Entry{value, owner});
  } else {
    found->second.value = value;
  }
}

}  // namespace lockstep::store
