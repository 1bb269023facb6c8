#pragma once

#include <string>

namespace lockstep {

/// What a run does when copies between its devices arrive changed.
enum class BadLinks {
  kStage,   ///< goes on through memory of the host, and says so
  kStop,    ///< ends with an error
  kIgnore,  ///< does not look
};

/// "stage", "stop", "ignore"; throws InvalidArgument with the nearest.
BadLinks parse_bad_links(const std::string& name);
std::string to_string(BadLinks bad_links);

}  // namespace lockstep
