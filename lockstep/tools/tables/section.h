#include "lockstep/base/format.h"
#pragma once

#include <cstdint>
#include <string>
#include <vector>

namespace lockstep::tools {

/// A table with a title, which can be drawn as text or as HTML.
struct Section {
  std::string title;
  std::vector<std::string> header{};
  std::vector<std::vector<std::string>> rows{};
};

/// Returns `text`, or "-" if it is empty because the value is unknown.
inline std::string or_dash(const std::string& text) {
  return text.empty() ? "-" : text;
}

/// Formats bytes: "1.2 GiB".
inline std::string bytes_text(int64_t bytes) {
  return format_bytes(static_cast<double>(bytes));
}

}  // namespace lockstep::tools
