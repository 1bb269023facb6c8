#include <fmt/format.h>

#include "lockstep/report/canvas.h"
#include "lockstep/report/dp_against_ddp.h"
#include "lockstep/report/page.h"
#include "lockstep/report/rendering.h"
#include "lockstep/report/sections.h"
#include "lockstep/report/time_line.h"

namespace lockstep::report {

std::string to_html(const Comparison& comparison) {
  std::string html =
      fmt::format("<h1>{}</h1>\n<p class=\"method\">{}</p>\n",
                  escaped(headline(comparison)), escaped(method(comparison)));
  html += table_block(set_up_section(comparison), step_time_chart(comparison));
  html += table_block(device_section(comparison), memory_chart(comparison));
  html += table_block(phase_section(comparison, 0), phase_chart(comparison));
  for (const TimeLine& line : time_lines(comparison)) {
    html += fmt::format("<h2>{}</h2>\n<div class=\"wide\">{}</div>\n",
                        escaped(line.title), time_line_chart(line));
  }
  html += table_block(dp_against_ddp_section(comparison));
  html += table_block(ratio_section(comparison), "");
  const auto sentences = reading(comparison);
  if (!sentences.empty()) {
    html += "<h2>What this says</h2>\n<ul>\n";
    for (const auto& sentence : sentences) {
      html += fmt::format("<li>{}</li>\n", escaped(sentence));
    }
    html += "</ul>\n";
  }
  return page("lockstep compare: " + headline(comparison), html);
}

}  // namespace lockstep::report
