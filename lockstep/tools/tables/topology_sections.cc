#include "lockstep/tools/tables/topology_sections.h"

#include <algorithm>

#include <fmt/format.h>

namespace lockstep::tools {
namespace {

using inspect::LinkSpeed;
using inspect::Topology;

struct Quantity {
  const char* title;
  double LinkSpeed::*value;
  double unit;
};

constexpr Quantity kQuantities[] = {
    {"Bandwidth (GB/s), from the device of the row to that of the column",
     &LinkSpeed::bytes_per_s, 1e9},
    {"Both directions at once (GB/s, sum of both)",
     &LinkSpeed::both_bytes_per_s, 1e9},
    {"Through memory of the host (GB/s)", &LinkSpeed::staged_bytes_per_s, 1e9},
    {"Latency (us)", &LinkSpeed::latency_s, 1e-6},
};

}  // namespace

Section matrix_section(const inspect::Topology& topology) {
  Section section{.title = "How devices are connected", .header = {""}};
  for (const auto& device : topology.devices) {
    section.header.push_back(device.name);
  }
  section.header.insert(section.header.end(), {"CPU affinity", "NUMA"});
  for (size_t i = 0; i < topology.devices.size(); ++i) {
    const auto& device = topology.devices[i];
    std::vector<std::string> row = {device.name};
    for (const auto& cell : topology.connections[i]) row.push_back(cell.text());
    row.insert(row.end(),
               {or_dash(device.cpu_affinity), or_dash(device.numa_affinity)});
    section.rows.push_back(std::move(row));
  }
  return section;
}

std::vector<Section> speed_sections(const Topology& topology,
                                    const std::vector<LinkSpeed>& speeds) {
  std::vector<Section> sections;
  if (speeds.empty()) return sections;
  std::vector<Device> devices;
  for (const LinkSpeed& speed : speeds) {
    if (std::ranges::find(devices, speed.link.from) == devices.end()) {
      devices.push_back(speed.link.from);
    }
  }
  for (const Quantity& quantity : kQuantities) {
    Section section{.title = quantity.title, .header = {""}};
    for (const auto& device : topology.devices) {
      section.header.push_back(device.name);
    }
    for (size_t i = 0; i < devices.size(); ++i) {
      std::vector<std::string> row = {topology.devices[i].name};
      for (const Device& to : devices) {
        const auto found =
            std::ranges::find_if(speeds, [&](const LinkSpeed& speed) {
              return speed.link == Link{devices[i], to};
            });
        row.push_back(found == speeds.end()
                          ? "-"
                          : fmt::format("{:.2f}", (*found).*quantity.value /
                                                      quantity.unit));
      }
      section.rows.push_back(std::move(row));
    }
    sections.push_back(std::move(section));
  }
  return sections;
}

}  // namespace lockstep::tools
