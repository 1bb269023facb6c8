#include "lockstep/launch/agent/notice.h"

#include <algorithm>

#include "lockstep/base/json.h"
#include "lockstep/base/printable.h"

namespace lockstep::launch {
namespace {

using nlohmann::json;

constexpr size_t kLongest = 1000;
constexpr double kLongestDelayS = 60;
constexpr int kMaxExitCode = 255;

}  // namespace

std::string to_text(const Notice& notice) {
  return json{{"why", notice.why},
              {"may_restart", notice.may_restart},
              {"is_fault", notice.is_fault},
              {"lost_node", notice.lost_node},
              {"exit_code", notice.exit_code}}
      .dump(-1, ' ', false, json::error_handler_t::replace);
}

Notice notice_from_text(const std::string& text) {
  const json object = try_parse_json(text);
  if (!object.is_object() || !object.contains("why") ||
      !object["why"].is_string()) {
    return {.why = printable(text, kLongest)};
  }
  const auto says = [&](const char* name, bool otherwise) {
    const auto found = object.find(name);
    const bool is_there = found != object.end() && found->is_boolean();
    return is_there ? found->get<bool>() : otherwise;
  };
  const auto number = [&](const char* name, int otherwise) {
    const auto found = object.find(name);
    const bool is_there = found != object.end() && found->is_number_integer();
    return is_there ? found->get<int>() : otherwise;
  };
  return {.why = printable(object["why"].get<std::string>(), kLongest),
          .may_restart = says("may_restart", false),
          .is_fault = says("is_fault", true),
          .lost_node = number("lost_node", -1),
          .exit_code = std::clamp(number("exit_code", 0), 0, kMaxExitCode)};
}

std::string to_text(const Decision& decision) {
  return json{{"restarts", decision.restarts}, {"delay_s", decision.delay_s}}
      .dump();
}

Decision decision_from_text(const std::string& text) {
  const json object = try_parse_json(text);
  if (!object.is_object()) return {};
  const auto restarts = object.find("restarts");
  const auto delay = object.find("delay_s");
  if (restarts == object.end() || !restarts->is_boolean() ||
      delay == object.end() || !delay->is_number()) {
    return {};
  }
  return {.restarts = restarts->get<bool>(),
          .delay_s = std::clamp(delay->get<double>(), 0.0, kLongestDelayS)};
}

}  // namespace lockstep::launch
