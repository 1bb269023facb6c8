#pragma once

#include <string>
#include <vector>

namespace lockstep::inspect {

/// How two devices are connected; from near to far, as `nvidia-smi topo -m`
/// and, for the slices of a host, the caches have it.
enum class ConnectionKind {
  kSelf,     ///< X
  kNvLink,   ///< NV#: a bonded set of # NVLinks
  kPix,      ///< PIX: one PCIe bridge at most
  kPxb,      ///< PXB: several PCIe bridges, and no host bridge
  kPhb,      ///< PHB: a PCIe host bridge
  kCore,     ///< CORE: slices on the same core
  kL2,       ///< L2: slices that share a second-level cache
  kL3,       ///< L3: slices that share a third-level cache
  kNode,     ///< NODE: within a NUMA node
  kSys,      ///< SYS: between NUMA nodes
  kUnknown,  ///< N/A
};

struct Connection {
  ConnectionKind kind = ConnectionKind::kUnknown;
  int links = 0;  ///< kNvLink: how many

  /// "NV4", "SYS".
  std::string text() const;
  bool operator==(const Connection&) const = default;
};

/// Of "NV4" or "SYS"; "SOC", as old drivers say, is SYS. Throws
/// InvalidArgument for another text.
Connection parse_connection(const std::string& text);

struct TopologyDevice {
  std::string name;           ///< "GPU0", "cpu:1"
  std::string cpu_affinity;   ///< "0-31"; "" if it is not known
  std::string numa_affinity;  ///< "0"; "" if it is not known
};

/// The devices of a host and how each two of them are connected.
struct Topology {
  std::vector<TopologyDevice> devices;
  /// [row][column], as many of both as devices.
  std::vector<std::vector<Connection>> connections;
};

/// The matrix as `nvidia-smi topo -m` writes it: cells with a tab between
/// them. The columns of affinity are there if a device has one.
std::string render_matrix(const Topology& topology);

/// What the cells of this topology mean, each in a line.
std::string render_legend(const Topology& topology);

/// A graph for Graphviz: `dot -Tsvg`.
std::string to_dot(const Topology& topology);

/// "0-3,8" of these numbers, which are in order.
std::string format_ranges(const std::vector<int>& numbers);

}  // namespace lockstep::inspect
