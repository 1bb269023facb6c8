#pragma once

#include <string>
#include <vector>

namespace lockstep::report {

/// A table with a title, which can be drawn as text or as HTML.
struct Section {
  std::string title;
  std::vector<std::string> header;
  std::vector<std::vector<std::string>> rows;
};

/// Returns `text`, or "-" if it is empty because the value is unknown.
inline std::string or_dash(const std::string& text) {
  return text.empty() ? "-" : text;
}

}  // namespace lockstep::report
