#include "lockstep/tools/page/comparison_page.h"

#include <set>

#include "lockstep/base/text.h"
#include "lockstep/tools/comparison/time_line.h"
#include "lockstep/tools/page/page.h"
#include "lockstep/tools/tables/comparison_sections.h"
#include "lockstep/tools/tables/topology_sections.h"

namespace lockstep::tools {
namespace {

void add_times(Page& page, const Comparison& comparison) {
  page.begin_chapter("Time");
  page.add_table(set_up_section(comparison));
  page.add_chart(step_time_chart(comparison));
  page.add_chart(distribution_chart(comparison));
  page.add_chart(step_history_chart(comparison));
}

void add_memory(Page& page, const Comparison& comparison) {
  page.begin_chapter("Devices and memory");
  page.add_table(device_section(comparison));
  page.add_chart(memory_chart(comparison));
}

// Shows the time line of each run that recorded one, with or without ranks.
void add_steps(Page& page, const Comparison& comparison) {
  page.begin_chapter("What happens in a step");
  page.add_table(phase_section(comparison, 0));
  page.add_chart(phase_chart(comparison));
  page.add_table(limit_section(comparison, 0));
  for (const auto& run : comparison.runs) {
    const TimeLine line = time_line_of(run);
    page.add_chart(time_line_chart(line));
  }
}

void add_results(Page& page, const Comparison& comparison) {
  page.begin_chapter("Loss and evaluations");
  page.add_chart(loss_chart(comparison));
  page.add_table(epoch_section(comparison));
  page.add_table(evaluation_section(comparison));
}

// Adds each topology only once, even if several runs had the same.
void add_topologies(Page& page, const Comparison& comparison,
                    const PageFacts& facts) {
  page.begin_chapter("Topology");
  std::set<std::string> seen;
  const auto add = [&](const inspect::Topology& topology,
                       const std::string& where) {
    if (!seen.insert(inspect::render_matrix(topology)).second) return;
    Section section = matrix_section(topology);
    section.title += where;
    page.add_table(section);
    page.add_code("What the matrix means" + where,
                  inspect::render_legend(topology));
  };
  if (facts.topology) add(*facts.topology, "");
  for (const auto& run : comparison.runs) {
    if (run.report.topology) add(*run.report.topology, ", " + run.label());
  }
}

void add_commands(Page& page, const Comparison& comparison,
                  const PageFacts& facts) {
  page.begin_chapter("Commands");
  if (!facts.command.empty()) {
    page.add_code("The command of this page", shell_command(facts.command));
  }
  if (!comparison.is_of_files) return;
  for (const auto& run : comparison.runs) {
    if (run.report.command.empty()) continue;
    page.add_heading(run.label());
    page.add_code("Command of " + run.label(),
                  shell_command(run.report.command));
  }
}

}  // namespace

std::string to_html(const Comparison& comparison, const PageFacts& facts) {
  Page page(headline(comparison), method(comparison));
  add_times(page, comparison);
  add_memory(page, comparison);
  add_steps(page, comparison);
  add_results(page, comparison);
  page.begin_chapter("DP against DDP");
  page.add_table(dp_against_ddp_section(comparison));
  page.begin_chapter("Beside PyTorch");
  page.add_table(ratio_section(comparison));
  page.begin_chapter("What this says");
  page.add_list(reading(comparison));
  add_topologies(page, comparison, facts);
  page.begin_chapter("Environment");
  page.add_table(work_section(comparison), Page::Cells::kProse);
  page.add_table(facts.environment ? environment_section(*facts.environment)
                                   : environment_section(comparison),
                 Page::Cells::kProse);
  add_commands(page, comparison, facts);
  return page.finish("lockstep compare: " + headline(comparison));
}

}  // namespace lockstep::tools
