#pragma once

#include <string>
#include <vector>

namespace lockstep::report {

/// A titled table, before it is drawn as text or as HTML.
struct Section {
  std::string title;
  std::vector<std::string> header;
  std::vector<std::vector<std::string>> rows;
};

/// A cell of what may not be known: `text`, or "-" if it is empty.
inline std::string or_dash(const std::string& text) {
  return text.empty() ? "-" : text;
}

}  // namespace lockstep::report
