#include "lockstep/report/page/topology_page.h"

#include "lockstep/report/page/page.h"
#include "lockstep/report/tables/topology_sections.h"

namespace lockstep::report {

std::string topology_page(const inspect::Topology& topology,
                          const std::vector<inspect::LinkSpeed>& speeds) {
  Page page("How devices are connected", "lockstep topo");
  page.begin_chapter("Topology");
  page.add_table(matrix_section(topology));
  page.add_code("What the matrix means", inspect::render_legend(topology));
  page.begin_chapter("Speed");
  for (const Section& section : speed_sections(topology, speeds)) {
    page.add_table(section);
  }
  return page.finish("lockstep topo");
}

}  // namespace lockstep::report
