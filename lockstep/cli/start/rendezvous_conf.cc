#include "lockstep/cli/start/rendezvous_conf.h"

#include <algorithm>
#include <charconv>
#include <cmath>
#include <sstream>
#include <vector>

#include "lockstep/base/text.h"
#include "lockstep/cli/start/checks.h"

namespace lockstep::cli {
namespace {

double seconds(const std::string& key, const std::string& text) {
  double value = 0;
  const char* end = text.data() + text.size();
  const auto [rest, error] = std::from_chars(text.data(), end, value);
  if (error != std::errc() || rest != end || !(value > 0) ||
      !std::isfinite(value)) {
    throw BadUsage("[usage] --rdzv-conf " + key +
                   ": expected a number above 0, got '" + text + "'");
  }
  return value;
}

bool truth(const std::string& key, const std::string& text) {
  for (const char* yes : {"1", "true", "True", "yes", "y", "t"}) {
    if (text == yes) return true;
  }
  for (const char* no : {"0", "false", "False", "no", "n", "f"}) {
    if (text == no) return false;
  }
  throw BadUsage("[usage] --rdzv-conf " + key +
                 ": expected true or false, got '" + text + "'");
}

}  // namespace

void apply_rendezvous_conf(const std::string& text,
                           launch::RunOptions& options) {
  const std::vector<std::string> keys{
      "join_timeout",  "timeout",      "keep_alive_interval",
      "is_host",       "read_timeout", "keep_alive_max_attempt",
      "close_timeout", "heartbeat",    "last_call_timeout",
      "interface"};
  double interval_s = 5;
  double attempts = 3;
  std::istringstream parts(text);
  for (std::string part; std::getline(parts, part, ',');) {
    const auto equals = part.find('=');
    const std::string key = part.substr(0, equals);
    const std::string value =
        equals == std::string::npos ? "" : part.substr(equals + 1);
    if (key == "join_timeout" || key == "timeout") {
      options.join_timeout_s = seconds(key, value);
    } else if (key == "last_call_timeout") {
      options.last_call_s = seconds(key, value);
    } else if (key == "keep_alive_interval") {
      interval_s = seconds(key, value);
    } else if (key == "keep_alive_max_attempt") {
      attempts = seconds(key, value);
    } else if (key == "is_host") {
      options.is_host = truth(key, value);
    } else if (key == "interface") {
      options.interface = value;
    } else if (std::find(keys.begin(), keys.end(), key) == keys.end()) {
      throw BadUsage("[usage] --rdzv-conf: unknown key '" + key + "'; " +
                     did_you_mean(key, keys));
    }
  }
  options.keep_alive_s = interval_s * attempts;
}

}  // namespace lockstep::cli
