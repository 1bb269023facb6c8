#include "lockstep/base/json.h"

#include "lockstep/base/classic_locale.h"

namespace lockstep {

template <class Json>
Json parse_json(std::string_view text) {
  const ClassicLocale scope;
  return Json::parse(text);
}

template <class Json>
Json try_parse_json(std::string_view text,
                    const typename Json::parser_callback_t& keep) {
  const ClassicLocale scope;
  return Json::parse(text, keep, /*allow_exceptions=*/false);
}

}  // namespace lockstep

template nlohmann::json lockstep::parse_json(std::string_view);
template nlohmann::ordered_json lockstep::parse_json(std::string_view);
template nlohmann::json lockstep::try_parse_json(
    std::string_view, const nlohmann::json::parser_callback_t&);
template nlohmann::ordered_json lockstep::try_parse_json(
    std::string_view, const nlohmann::ordered_json::parser_callback_t&);
template std::string nlohmann::basic_json<>::dump(
    int, char, bool, nlohmann::json::error_handler_t) const;
template std::string nlohmann::basic_json<nlohmann::ordered_map>::dump(
    int, char, bool, nlohmann::ordered_json::error_handler_t) const;
