#include <memory>

#include <fmt/format.h>

#include "lockstep/base/json.h"
#include "lockstep/base/output.h"
#include "lockstep/base/table.h"
#include "lockstep/cli/embed/device_options.h"
#include "lockstep/cli/progress_line.h"
#include "lockstep/cli/start/add_option.h"
#include "lockstep/cli/start/print.h"
#include "lockstep/cli/start/program.h"
#include "lockstep/device/memory.h"
#include "lockstep/inspect/device_topology.h"
#include "lockstep/inspect/link_speed.h"
#include "lockstep/inspect/recorded_topology.h"
#include "lockstep/tools/commands/commands.h"
#include "lockstep/tools/page/page.h"
#include "lockstep/tools/tables/topology_sections.h"

namespace lockstep::cli {
namespace {

using inspect::LinkSpeed;
using inspect::Topology;

struct TopoFlags {
  DeviceFlags devices;
  std::string replay;
  bool no_measure = false;
  bool as_json = false;
  bool as_dot = false;
  std::string html;
};

std::vector<LinkSpeed> measured(const std::vector<Device>& devices) {
  install_accounting_allocator();
  ProgressLine line("topo");
  return inspect::measure_links(
      links_between(devices), {},
      [&line](const Link& link) { line.show("measuring " + link.name()); });
}

nlohmann::ordered_json to_json(const Topology& topology,
                               const std::vector<LinkSpeed>& speeds) {
  auto json = inspect::to_json(topology);
  auto links = nlohmann::ordered_json::array();
  for (const LinkSpeed& speed : speeds) {
    links.push_back({{"from", speed.link.from.name()},
                     {"to", speed.link.to.name()},
                     {"bytes_per_s", speed.bytes_per_s},
                     {"both_bytes_per_s", speed.both_bytes_per_s},
                     {"staged_bytes_per_s", speed.staged_bytes_per_s},
                     {"latency_s", speed.latency_s}});
  }
  if (!speeds.empty()) json["measured"] = std::move(links);
  return json;
}

void print_text(const Topology& topology,
                const std::vector<LinkSpeed>& speeds) {
  fmt::print("{}\n{}", inspect::render_matrix(topology),
             inspect::render_legend(topology));
  for (const auto& section : tools::speed_sections(topology, speeds)) {
    Table table(section.header);
    for (const auto& row : section.rows) table.add_row(row);
    fmt::print("\n{}\n", section.title);
    print_in_terminal(table);
  }
}

// Returns the matrix, its legend and the measured speeds as one page.
std::string topology_page(const Topology& topology,
                          const std::vector<LinkSpeed>& speeds) {
  tools::Page page("How devices are connected", "lockstep topo");
  page.begin_chapter("Topology");
  page.add_table(tools::matrix_section(topology));
  page.add_code("What the matrix means", inspect::render_legend(topology));
  page.begin_chapter("Speed");
  for (const tools::Section& section :
       tools::speed_sections(topology, speeds)) {
    page.add_table(section);
  }
  return page.finish("lockstep topo");
}

void show(const TopoFlags& flags) {
  Topology topology;
  std::vector<LinkSpeed> speeds;
  if (!flags.replay.empty()) {
    topology = inspect::read_topology(flags.replay);
  } else {
    const auto devices = to_devices(flags.devices, "all");
    topology = inspect::device_topology(devices);
    if (!flags.no_measure && !flags.as_dot) speeds = measured(devices);
    inspect::add_measured_connections(topology, speeds);
  }
  if (!flags.html.empty()) {
    write_atomically(flags.html, topology_page(topology, speeds));
  }
  if (flags.as_json) {
    fmt::print("{}\n", to_json(topology, speeds).dump(2));
  } else if (flags.as_dot) {
    fmt::print("{}", inspect::to_dot(topology));
  } else {
    print_text(topology, speeds);
  }
}

}  // namespace

void add_topo(CLI::App& app) {
  auto* command =
      add_command(app, "topo", "Show how devices are connected, and how fast");
  auto flags = std::make_shared<TopoFlags>();
  add_options(*command, device_options(flags->devices, "all"));
  add_options(
      *command,
      {{.name = "--replay",
        .value = &flags->replay,
        .help = "show a recorded topology instead: what `nvidia-smi topo -m` "
                "or --json wrote",
        .type = "FILE",
        .default_text = "none"},
       {.name = "--no-measure",
        .value = &flags->no_measure,
        .help = "don't measure the links"},
       {.name = "--json", .value = &flags->as_json, .help = "print JSON"},
       {.name = "--dot",
        .value = &flags->as_dot,
        .help = "print a graph for Graphviz's dot"},
       {.name = "--html",
        .value = &flags->html,
        .help = "also write a page here",
        .type = "PATH",
        .default_text = "none"}});
  command->get_option("--dot")->excludes("--json");
  command->footer(
      "The matrix has the form of `nvidia-smi topo -m`. Slices of the host are "
      "shown like GPUs: two slices share a core, a cache or a NUMA node.");
  command->callback([flags] { show(*flags); });
}

}  // namespace lockstep::cli
