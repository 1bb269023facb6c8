#pragma once

#include <string>
#include <vector>

namespace lockstep::inspect {

/// The kinds of connection between two devices, from near to far: those of
/// `nvidia-smi topo -m`, shared caches for the slices of a host, and what
/// measurements show for other accelerators.
enum class ConnectionKind {
  kSelf,     ///< X
  kNvLink,   ///< NV#: a bonded set of # NVLinks
  kPix,      ///< PIX: at most one PCIe bridge
  kPxb,      ///< PXB: several PCIe bridges, but no host bridge
  kPhb,      ///< PHB: a PCIe host bridge
  kCore,     ///< CORE: slices on the same core
  kL2,       ///< L2: slices that share a second-level cache
  kL3,       ///< L3: slices that share a third-level cache
  kNode,     ///< NODE: within a NUMA node
  kSys,      ///< SYS: between NUMA nodes
  kPeer,     ///< P2P: copies are faster than through the host
  kHost,     ///< HOST: copies are as fast as through the host
  kUnknown,  ///< N/A
};

struct Connection {
  ConnectionKind kind = ConnectionKind::kUnknown;
  int links = 0;  ///< number of links for kNvLink

  /// Returns "NV4", "SYS" and so on.
  std::string text() const;
  bool operator==(const Connection&) const = default;
};

/// Parses "NV4", "SYS" and so on. "SOC", used by old drivers, is SYS. Throws
/// InvalidArgument for any other text.
Connection parse_connection(const std::string& text);

struct TopologyDevice {
  std::string name;           ///< "GPU0", "cpu:1"
  std::string cpu_affinity;   ///< "0-31", or "" if it is not known
  std::string numa_affinity;  ///< "0", or "" if it is not known
};

/// The devices of a host and the connection of each pair.
struct Topology {
  std::vector<TopologyDevice> devices;
  /// [row][column], one row and one column for each device.
  std::vector<std::vector<Connection>> connections;
};

/// Returns the matrix in the format of `nvidia-smi topo -m`: cells separated by
/// tabs. It has the affinity columns if the affinity of a device is known.
std::string render_matrix(const Topology& topology);

/// Returns the meaning of the cells of this topology, one line each.
std::string render_legend(const Topology& topology);

/// Returns a graph for Graphviz (`dot -Tsvg`).
std::string to_dot(const Topology& topology);

/// Formats sorted numbers as ranges: "0-3,8".
std::string format_ranges(const std::vector<int>& numbers);

}  // namespace lockstep::inspect
