#pragma once

#include <string>
#include <string_view>
#include <vector>

#include <nlohmann/json.hpp>

namespace lockstep {

/// A JSON document of a file that may be hostile.
struct OrderedJson {
  nlohmann::json root;
  std::vector<std::string> order;  ///< the root's keys as they were written
};

/// Parses `text` of the file at `path`. Throws CheckpointError for what is
/// not JSON, and for what nlohmann-json takes in silence or at great cost: a
/// key given twice, nesting deeper than 3, a list of more than 64 values, text
/// after a zero.
OrderedJson parse_strict_json(const std::string& path, std::string_view text);

/// `text` in quotes, escaped and cut. A name out of a file may hold anything;
/// like this it can't spoil a terminal or fill a log.
std::string quote(const std::string& text);

/// A value in few words, for the `got` of an error.
std::string brief(const nlohmann::json& value);

}  // namespace lockstep
