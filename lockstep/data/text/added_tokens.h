#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <unordered_map>
#include <vector>

namespace lockstep::data {

/// Finds tokens in text: the leftmost first, and the longest of several there.
class AddedTokens {
 public:
  struct Found {
    size_t begin;
    size_t end;
    uint32_t id;
  };

  /// `text` must not be empty.
  void add(const std::string& text, uint32_t id);
  bool empty() const { return ids_.empty(); }
  /// Returns the first token that begins at or after `begin`.
  std::optional<Found> find(std::string_view text, size_t begin) const;

 private:
  std::unordered_map<std::string, uint32_t> ids_;
  /// Lengths of the tokens that begin with a byte, the longest first.
  std::array<std::vector<size_t>, 256> lengths_;
};

}  // namespace lockstep::data
