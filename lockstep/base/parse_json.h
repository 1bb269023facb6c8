#pragma once

#include <string_view>

#include <nlohmann/json.hpp>

#include "lockstep/base/classic_locale.h"

// nlohmann-json reads numbers with strtod(), which follows the locale of the
// program. These do not.
namespace lockstep {

/// Parses `text`. Throws Json::parse_error if it is not JSON.
template <class Json = nlohmann::json>
Json parse_json(std::string_view text) {
  const ClassicLocale scope;
  return Json::parse(text);
}

/// Parses `text`. Returns a discarded value if it is not JSON. `keep` may leave
/// out parts of it.
template <class Json = nlohmann::json>
Json try_parse_json(std::string_view text,
                    const typename Json::parser_callback_t& keep = nullptr) {
  const ClassicLocale scope;
  return Json::parse(text, keep, /*allow_exceptions=*/false);
}

}  // namespace lockstep
