#pragma once

#include <cstddef>
#include <string>
#include <string_view>

namespace lockstep {

/// `text` in a form that is safe on a terminal, even if a hostile program wrote
/// it: valid UTF-8 without control characters, except for tabs and line ends,
/// without marks that change the direction of text, and at most `max_bytes`
/// long.
std::string printable(std::string_view text, size_t max_bytes);

/// The same in one line, without tabs and line ends.
std::string printable_line(std::string_view text, size_t max_bytes);

}  // namespace lockstep
