#pragma once

#include <cstdint>
#include <memory>
#include <string>
#include <string_view>
#include <vector>

#include "lockstep/device/links/link.h"

namespace lockstep {

/// What a broken link does to a copy. Here to test what finds it.
struct LinkFault {
  enum class Kind {
    kCorrupt,  ///< some of the bytes arrive as others
    kDrop,     ///< nothing arrives, and the copy says that it was made
    kDelay,    ///< the copy takes `delay_s` longer
  };
  Kind kind = Kind::kCorrupt;
  Link link;
  int64_t least_bytes = 0;  ///< smaller copies are made as they should be
  double delay_s = 0;
};

/// Faults by ';', each `KIND:FROM>TO` with KIND one of corrupt, drop and
/// delay=SECONDS, and `@BYTES` behind it for copies of so many bytes and more:
/// `corrupt:cuda:0>cuda:1@1048576`. Throws InvalidArgument.
std::vector<LinkFault> parse_link_faults(std::string_view text);

inline constexpr const char* kLinkFaultsVariable = "LOCKSTEP_LINK_FAULTS";

/// The faults of this process: those of the variable LOCKSTEP_LINK_FAULTS, or
/// of inject_link_faults().
std::shared_ptr<const std::vector<LinkFault>> link_faults();
bool has_link_faults();
/// As parse_link_faults() reads them.
std::string link_faults_text();
/// For tests. Also forgets which links were checked and how bytes go over them.
void inject_link_faults(std::string_view text);

}  // namespace lockstep
