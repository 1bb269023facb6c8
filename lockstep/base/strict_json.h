#pragma once

#include <cstddef>
#include <string>
#include <string_view>
#include <vector>

#include "lockstep/base/error.h"
#include "lockstep/base/json.h"

namespace lockstep {

/// A JSON document from a file that may be hostile.
struct OrderedJson {
  nlohmann::json root;
  std::vector<std::string> order;  ///< the root's keys as they were written
};

/// Limits of a document, and the exception for one that exceeds them.
struct JsonLimits {
  size_t depth = 3;    ///< nesting: a list in an entry of an entry of the root
  size_t listed = 64;  ///< values in a list
  void (*fail)(const Problem& problem) = nullptr;  ///< throws
};

/// Parses `text`, the content of the file at `path`. Fails with kMalformedData
/// if it is not JSON, and for input that nlohmann-json accepts silently or at
/// great cost: a key given twice, nesting or lists beyond `limits`, and text
/// after a zero byte.
OrderedJson parse_strict_json(const std::string& path, std::string_view text,
                              const JsonLimits& limits);

/// Throws CheckpointError. For use as JsonLimits::fail.
[[noreturn]] void fail_checkpoint(const Problem& problem);
/// Throws DataError. For use as JsonLimits::fail.
[[noreturn]] void fail_data(const Problem& problem);

/// Returns `text` in quotes, escaped and cut. A name from a file may contain
/// anything; in this form it can't garble a terminal or fill a log.
std::string quote(const std::string& text);

/// Returns a short description of a value, for the `got` of an error.
std::string brief(const nlohmann::json& value);

}  // namespace lockstep
