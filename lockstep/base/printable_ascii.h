#pragma once

#include <algorithm>
#include <string>

namespace lockstep {

/// `text` with a ? for each byte that is not printable ASCII: for a message
/// that repeats what a file or a server says, and must not spoil a terminal.
inline std::string printable_ascii(std::string text) {
  std::replace_if(
      text.begin(), text.end(),
      [](char letter) { return letter < ' ' || letter > '~'; }, '?');
  return text;
}

}  // namespace lockstep
