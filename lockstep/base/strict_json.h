#pragma once

#include <cstddef>
#include <string>
#include <string_view>
#include <vector>

#include "lockstep/base/error.h"
#include "lockstep/base/json.h"

namespace lockstep {

/// A JSON document of a file that may be hostile.
struct OrderedJson {
  nlohmann::json root;
  std::vector<std::string> order;  ///< the root's keys as they were written
};

/// What a document may hold, and the exception for one that does not keep to
/// it.
struct JsonLimits {
  size_t depth = 3;    ///< an entry's list in an entry in the root
  size_t listed = 64;  ///< values in a list
  void (*fail)(const Problem& problem) = nullptr;  ///< it throws
};

/// Parses `text` of the file at `path`. Fails with kMalformedJson for what is
/// not JSON, and for what nlohmann-json takes in silence or at great cost: a
/// key given twice, nesting deeper and lists longer than `limits` say, text
/// after a zero.
OrderedJson parse_strict_json(const std::string& path, std::string_view text,
                              const JsonLimits& limits);

/// Throws CheckpointError, as JsonLimits::fail.
[[noreturn]] void fail_checkpoint(const Problem& problem);
/// Throws DataError, as JsonLimits::fail.
[[noreturn]] void fail_data(const Problem& problem);

/// `text` in quotes, escaped and cut. A name out of a file may hold anything;
/// like this it can't spoil a terminal or fill a log.
std::string quote(const std::string& text);

/// A value in few words, for the `got` of an error.
std::string brief(const nlohmann::json& value);

}  // namespace lockstep
