#pragma once

#include <cstddef>
#include <string>
#include <string_view>
#include <vector>

namespace lockstep::launch {

/// `text` in a form that is safe on a terminal, even if a hostile program wrote
/// it: valid UTF-8 without control characters, except for tabs and line ends,
/// and at most `max_bytes` long.
std::string printable(std::string_view text, size_t max_bytes);

/// The last `count` lines of `text` that are not blank.
std::vector<std::string> last_lines(std::string_view text, size_t count);

}  // namespace lockstep::launch
