#include "lockstep/inspect/topology.h"

#include <algorithm>
#include <array>
#include <set>

#include <fmt/format.h>
#include <fmt/ranges.h>

#include "lockstep/base/error.h"
#include "lockstep/base/numbers.h"

namespace lockstep::inspect {
namespace {

struct Meaning {
  ConnectionKind kind;
  const char* cell;
  const char* text;
  const char* colour;  // colour of the edge in a graph
};

constexpr std::array<Meaning, 13> kMeanings = {{
    {ConnectionKind::kSelf, "X", "the device itself", "black"},
    {ConnectionKind::kSys, "SYS",
     "over PCIe and the interconnect between NUMA nodes", "firebrick"},
    {ConnectionKind::kNode, "NODE",
     "within a NUMA node: for GPUs, over PCIe and between its host bridges",
     "darkorange"},
    {ConnectionKind::kPhb, "PHB", "over PCIe and a host bridge, the CPU's own",
     "goldenrod"},
    {ConnectionKind::kPxb, "PXB",
     "over several PCIe bridges, but no host bridge", "olivedrab"},
    {ConnectionKind::kPix, "PIX", "over one PCIe bridge at most",
     "forestgreen"},
    {ConnectionKind::kNvLink, "NV#", "over a bonded set of # NVLinks",
     "royalblue"},
    {ConnectionKind::kL3, "L3", "slices of the host that share an L3 cache",
     "olivedrab"},
    {ConnectionKind::kL2, "L2", "slices of the host that share an L2 cache",
     "forestgreen"},
    {ConnectionKind::kCore, "CORE", "slices of the host on the same core",
     "royalblue"},
    {ConnectionKind::kPeer, "P2P",
     "copies were faster than through memory of the host", "royalblue"},
    {ConnectionKind::kHost, "HOST",
     "copies were as fast as through memory of the host", "darkorange"},
    {ConnectionKind::kUnknown, "N/A", "not known", "gray"},
}};

const Meaning& meaning_of(ConnectionKind kind) {
  return *std::ranges::find(kMeanings, kind, &Meaning::kind);
}

bool has(const Topology& topology, std::string TopologyDevice::*affinity) {
  return std::ranges::any_of(topology.devices,
                             [affinity](const TopologyDevice& device) {
                               return !(device.*affinity).empty();
                             });
}

}  // namespace

std::string Connection::text() const {
  if (kind == ConnectionKind::kNvLink) return fmt::format("NV{}", links);
  return meaning_of(kind).cell;
}

Connection parse_connection(const std::string& text) {
  if (text == "SOC") return {ConnectionKind::kSys};
  for (const Meaning& meaning : kMeanings) {
    if (text == meaning.cell && meaning.kind != ConnectionKind::kNvLink) {
      return {meaning.kind};
    }
  }
  constexpr int kMaxLinks = 1024;
  const auto links =
      text.starts_with("NV") ? parse_number<int>(text.substr(2)) : std::nullopt;
  if (links && *links >= 1 && *links <= kMaxLinks) {
    return {ConnectionKind::kNvLink, *links};
  }
  throw InvalidArgument(
      "topo", {.code = ErrorCode::kMalformedData,
               .what = "a cell of the matrix can't be read",
               .expected = "X, NV#, PIX, PXB, PHB, NODE, SYS, CORE, L2, L3, "
                           "P2P, HOST or N/A",
               .got = text.substr(0, 40)});
}

std::string render_matrix(const Topology& topology) {
  const bool has_cpu = has(topology, &TopologyDevice::cpu_affinity);
  const bool has_numa = has(topology, &TopologyDevice::numa_affinity);
  std::string text;
  for (const auto& device : topology.devices) text += '\t' + device.name;
  if (has_cpu) text += "\tCPU Affinity";
  if (has_numa) text += "\tNUMA Affinity";
  text += '\n';
  for (size_t row = 0; row < topology.devices.size(); ++row) {
    const TopologyDevice& device = topology.devices[row];
    text += device.name;
    for (const Connection& cell : topology.connections[row]) {
      text += '\t' + cell.text();
    }
    if (has_cpu) text += '\t' + device.cpu_affinity;
    if (has_numa) text += '\t' + device.numa_affinity;
    text += '\n';
  }
  return text;
}

std::string render_legend(const Topology& topology) {
  std::set<ConnectionKind> used;
  for (const auto& row : topology.connections) {
    for (const Connection& cell : row) used.insert(cell.kind);
  }
  // Recordings of nvidia-smi call them GPU0, NIC0 and so on.
  const bool has_gpus =
      std::ranges::any_of(topology.devices, [](const auto& device) {
        return device.name.find(':') == std::string::npos;
      });
  std::string text = "Legend:\n\n";
  for (const Meaning& meaning : kMeanings) {
    const bool is_of_nvidia = meaning.kind != ConnectionKind::kCore &&
                              meaning.kind != ConnectionKind::kL2 &&
                              meaning.kind != ConnectionKind::kL3 &&
                              meaning.kind != ConnectionKind::kPeer &&
                              meaning.kind != ConnectionKind::kHost &&
                              meaning.kind != ConnectionKind::kUnknown;
    // As in nvidia-smi, all kinds are listed for its GPUs. For other devices,
    // only those that are used.
    const bool is_shown =
        used.contains(meaning.kind) || (has_gpus && is_of_nvidia);
    if (is_shown) {
      text += fmt::format("  {:<4} = {}\n", meaning.cell, meaning.text);
    }
  }
  return text;
}

std::string to_dot(const Topology& topology) {
  std::string text =
      "graph topology {\n  layout = circo;\n  node [shape = box];\n";
  const auto& devices = topology.devices;
  for (size_t i = 0; i < devices.size(); ++i) {
    text += fmt::format("  \"{}\";\n", devices[i].name);
  }
  for (size_t i = 0; i < devices.size(); ++i) {
    for (size_t j = i + 1; j < devices.size(); ++j) {
      const Connection& cell = topology.connections[i][j];
      text += fmt::format("  \"{}\" -- \"{}\" [label = \"{}\", color = {}];\n",
                          devices[i].name, devices[j].name, cell.text(),
                          meaning_of(cell.kind).colour);
    }
  }
  return text + "}\n";
}

std::string format_ranges(const std::vector<int>& numbers) {
  std::vector<std::string> ranges;
  for (size_t i = 0; i < numbers.size();) {
    size_t last = i;
    while (last + 1 < numbers.size() &&
           numbers[last + 1] == numbers[last] + 1) {
      ++last;
    }
    ranges.push_back(last == i
                         ? fmt::format("{}", numbers[i])
                         : fmt::format("{}-{}", numbers[i], numbers[last]));
    i = last + 1;
  }
  return fmt::format("{}", fmt::join(ranges, ","));
}

}  // namespace lockstep::inspect
