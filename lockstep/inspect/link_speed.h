#pragma once

#include <functional>
#include <optional>
#include <span>
#include <vector>

#include "lockstep/device/links/link.h"

namespace lockstep::inspect {

/// What was measured of a link.
struct LinkSpeed {
  Link link;
  double bytes_per_s = 0;         ///< of large copies
  double both_bytes_per_s = 0;    ///< with copies in the other direction beside
                                  ///< them, both together
  double staged_bytes_per_s = 0;  ///< through memory of the host
  double latency_s = 0;           ///< until a small message is there
};

struct LinkSpeedOptions {
  int64_t bytes = int64_t{64} << 20;  ///< of a copy
  int copies = 5;                     ///< of which the median counts
};

/// Measures each link in turn, with nothing beside it but the two devices at
/// its ends. Slices: a thread on the receiving slice copies from memory that
/// the other one wrote; latency is half the time that a cache line takes to go
/// there and back. GPUs: LibTorch's copies, peer to peer where there is such
/// access; latency is that of a copy of 4 bytes. `on_link` is called before
/// each link.
std::vector<LinkSpeed> measure_links(
    std::span<const Link> links, const LinkSpeedOptions& options = {},
    const std::function<void(const Link&)>& on_link = {});

}  // namespace lockstep::inspect
