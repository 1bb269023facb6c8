#pragma once

#include <functional>
#include <span>
#include <vector>

#include "lockstep/device/links/link.h"
#include "lockstep/inspect/topology.h"

namespace lockstep::inspect {

/// The measured speed of a link.
struct LinkSpeed {
  Link link;
  double bytes_per_s = 0;         ///< large copies
  double both_bytes_per_s = 0;    ///< simultaneous copies both ways, in total
  double staged_bytes_per_s = 0;  ///< copies through host memory
  double latency_s = 0;           ///< time until a small message arrives
};

struct LinkSpeedOptions {
  int64_t bytes = int64_t{64} << 20;  ///< size of a copy
  int copies = 5;                     ///< copies to take the median of
};

/// Measures each link in turn, while only the two devices at its ends are used.
/// For slices, a thread on the receiving slice copies from memory that the
/// other slice wrote, and the latency is half the round-trip time of a cache
/// line. For GPUs, LibTorch copies, peer to peer if possible, and the latency
/// is the time of a copy of 4 bytes. Calls `on_link` before each link.
std::vector<LinkSpeed> measure_links(
    std::span<const Link> links, const LinkSpeedOptions& options = {},
    const std::function<void(const Link&)>& on_link = {});

/// Replaces unknown connections in `topology` by what `speeds` show: kPeer if
/// copies in both directions are clearly faster than through the host, else
/// kHost. Connections without speeds stay unknown.
void add_measured_connections(Topology& topology,
                              std::span<const LinkSpeed> speeds);

}  // namespace lockstep::inspect
