#pragma once

#include <cstddef>
#include <string>
#include <string_view>
#include <vector>

namespace lockstep::launch {

/// `text` as it can be shown on a terminal, whoever wrote it: valid UTF-8,
/// without control characters but tabs and line ends, cut to `max_bytes`.
std::string printable(std::string_view text, size_t max_bytes);

/// The last `count` lines of `text` that are not blank.
std::vector<std::string> last_lines(std::string_view text, size_t count);

}  // namespace lockstep::launch
