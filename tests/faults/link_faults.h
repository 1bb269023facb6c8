#pragma once

#include <cstdint>
#include <string_view>
#include <vector>

#include "lockstep/device/links/link.h"

namespace lockstep {

/// A simulated fault of a link. Links between slices have no faults of their
/// own, so the tests of the link checks break them.
struct LinkFault {
  enum class Kind {
    kCorrupt,  ///< some of the bytes are changed
    kDrop,     ///< nothing arrives, but the copy reports success
    kDelay,    ///< the copy takes `delay_s` longer
  };
  Kind kind = Kind::kCorrupt;
  Link link;
  int64_t least_bytes = 0;  ///< smaller copies are not affected
  double delay_s = 0;
};

/// Parses faults separated by ';'. Each is `KIND:FROM>TO`, where KIND is
/// corrupt, drop or delay=SECONDS, and may end with `@BYTES` to affect only
/// copies of at least that many bytes: `corrupt:cuda:0>cuda:1@1048576`. Throws
/// InvalidArgument.
std::vector<LinkFault> parse_link_faults(std::string_view text);

inline constexpr const char* kLinkFaultsVariable = "LOCKSTEP_LINK_FAULTS";

/// Gives links of this process these faults, and only these. Also forgets which
/// links were checked and the paths that were set for them.
void inject_link_faults(std::string_view text);
/// Does this for the faults that the variable LOCKSTEP_LINK_FAULTS names, if it
/// is set, and prints a warning.
void inject_link_faults_of_environment();

}  // namespace lockstep
