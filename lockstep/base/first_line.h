#pragma once

#include <string>
#include <string_view>

namespace lockstep {

/// `text` up to its first line's end: what others' messages say before they
/// go on with a stack.
inline std::string first_line(std::string_view text) {
  return std::string(text.substr(0, text.find('\n')));
}

}  // namespace lockstep
