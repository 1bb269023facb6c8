#include "lockstep/data/text/tokenizer.h"

#include <fmt/format.h>

#include "lockstep/base/error.h"
#include "lockstep/base/strict_json.h"
#include "lockstep/data/text/byte_tokenizer.h"
#include "lockstep/data/text/character_tokenizer.h"

namespace lockstep::data {

void check_id(uint32_t id, int64_t vocabulary) {
  if (id < vocabulary) return;
  throw InvalidArgument("data",
                        {.code = ErrorCode::kBadOption,
                         .what = fmt::format("there is no token {}", id),
                         .expected = fmt::format("0 to {}", vocabulary - 1)});
}

std::shared_ptr<const Tokenizer> parse_tokenizer(std::string_view json,
                                                 const std::string& source) {
  const auto root = parse_strict_json(source, json, {.fail = fail_data}).root;
  const auto text_at = [&](const char* key) {
    const bool is_there = root.is_object() && root.contains(key);
    return is_there && root.at(key).is_string()
               ? root.at(key).get<std::string>()
               : std::string();
  };
  const std::string type = text_at("type");
  if (type == "bytes") return std::make_shared<ByteTokenizer>();
  if (type == "characters") {
    return std::make_shared<CharacterTokenizer>(text_at("characters"));
  }
  throw DataError({.code = ErrorCode::kMalformedData,
                   .what = source + " describes no tokenizer",
                   .expected = "a type of \"characters\" or \"bytes\"",
                   .got = quote(type)});
}

}  // namespace lockstep::data
