#include "lockstep/base/minority.h"

#include <cstddef>
#include <map>
#include <string_view>

namespace lockstep {

std::vector<int> minority(const std::vector<std::string>& texts) {
  std::map<std::string_view, size_t> counts;
  for (const std::string& text : texts) ++counts[text];
  for (const auto& [text, count] : counts) {
    if (2 * count <= texts.size()) continue;
    std::vector<int> ranks;
    for (size_t rank = 0; rank < texts.size(); ++rank) {
      if (texts[rank] != text) ranks.push_back(static_cast<int>(rank));
    }
    return ranks;
  }
  return {};
}

}  // namespace lockstep
