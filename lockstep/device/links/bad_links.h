#pragma once

#include <string>

namespace lockstep {

/// Reaction of a run to copies between its devices that change data.
enum class BadLinks {
  kStage,   ///< warn, and copy through memory of the host
  kStop,    ///< end with an error
  kIgnore,  ///< don't check
};

/// Accepts "stage", "stop" and "ignore". Throws InvalidArgument that names the
/// nearest.
BadLinks parse_bad_links(const std::string& name);
std::string to_string(BadLinks bad_links);

}  // namespace lockstep
