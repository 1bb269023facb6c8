#pragma once

#include <algorithm>
#include <string>

namespace lockstep {

/// Returns `text` with a ? for each byte that is not printable ASCII. For
/// messages that quote a file or a server and must not garble a terminal.
inline std::string printable_ascii(std::string text) {
  std::replace_if(
      text.begin(), text.end(),
      [](char letter) { return letter < ' ' || letter > '~'; }, '?');
  return text;
}

}  // namespace lockstep
