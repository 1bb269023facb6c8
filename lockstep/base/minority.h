#pragma once

#include <string>
#include <vector>

namespace lockstep {

/// Returns the ranks whose text is not that of most ranks, or an empty list if
/// no text is that of more than half of them. `texts` are by rank.
std::vector<int> minority(const std::vector<std::string>& texts);

}  // namespace lockstep
