#include "lockstep/data/text/added_tokens.h"

#include <algorithm>
#include <functional>

namespace lockstep::data {

void AddedTokens::add(const std::string& text, uint32_t id) {
  ids_.emplace(text, id);
  auto& lengths = lengths_[static_cast<unsigned char>(text.front())];
  const auto place = std::lower_bound(lengths.begin(), lengths.end(),
                                      text.size(), std::greater<>());
  if (place == lengths.end() || *place != text.size()) {
    lengths.insert(place, text.size());
  }
}

std::optional<AddedTokens::Found> AddedTokens::find(std::string_view text,
                                                    size_t begin) const {
  if (ids_.empty()) return std::nullopt;
  for (; begin < text.size(); ++begin) {
    for (const size_t length :
         lengths_[static_cast<unsigned char>(text[begin])]) {
      if (length > text.size() - begin) continue;
      const auto found = ids_.find(std::string(text.substr(begin, length)));
      if (found == ids_.end()) continue;
      return Found{.begin = begin, .end = begin + length, .id = found->second};
    }
  }
  return std::nullopt;
}

}  // namespace lockstep::data
