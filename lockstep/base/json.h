#pragma once

#include <string>
#include <string_view>

#include <nlohmann/json.hpp>

// nlohmann-json reads numbers with strtod(), which follows the locale of the
// program. These functions do not.
namespace lockstep {

/// Parses `text`. Throws Json::parse_error if it is not JSON.
template <class Json = nlohmann::json>
Json parse_json(std::string_view text);

/// Parses `text`. Returns a discarded value if it is not JSON. `keep` may omit
/// parts of the document.
template <class Json = nlohmann::json>
Json try_parse_json(std::string_view text,
                    const typename Json::parser_callback_t& keep = nullptr);

}  // namespace lockstep

// json.cc compiles the parser and the serializer for all files. Without these
// declarations every file would compile them again.
extern template nlohmann::json lockstep::parse_json(std::string_view);
extern template nlohmann::ordered_json lockstep::parse_json(std::string_view);
extern template nlohmann::json lockstep::try_parse_json(
    std::string_view, const nlohmann::json::parser_callback_t&);
extern template nlohmann::ordered_json lockstep::try_parse_json(
    std::string_view, const nlohmann::ordered_json::parser_callback_t&);
extern template std::string nlohmann::basic_json<>::dump(
    int, char, bool, nlohmann::json::error_handler_t) const;
extern template std::string nlohmann::basic_json<nlohmann::ordered_map>::dump(
    int, char, bool, nlohmann::ordered_json::error_handler_t) const;
