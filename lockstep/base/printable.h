#pragma once

#include <cstddef>
#include <string>
#include <string_view>

namespace lockstep {

/// Returns `text` in a form that is safe on a terminal, even if a hostile
/// program wrote it: valid UTF-8, without marks that change the direction of
/// text, and without control characters except tabs and newlines. It is cut
/// after `max_bytes`, and " [...]" is appended if it was longer.
std::string printable(std::string_view text, size_t max_bytes);

/// Returns the same in one line, without tabs and newlines.
std::string printable_line(std::string_view text, size_t max_bytes);

/// Returns `text` with a ? for each byte that is not printable ASCII. For
/// messages that quote a file or a server and must not garble a terminal.
std::string printable_ascii(std::string text);

}  // namespace lockstep
