#include <fmt/format.h>

#include "lockstep/base/version.h"
#include "lockstep/report/canvas.h"
#include "lockstep/report/rendering.h"
#include "lockstep/report/sections.h"
#include "lockstep/report/time_line.h"

namespace lockstep::report {
namespace {

constexpr const char* kPageStyle = R"(
:root { color-scheme: light dark; }
body { margin: 2rem auto; max-width: 50rem; padding: 0 1rem;
  background: var(--paper); color: var(--ink);
  font: 15px/1.5 system-ui, sans-serif; }
h1 { font-size: 1.4rem; margin-bottom: 0; }
h2 { font-size: 1.05rem; margin: 2rem 0 0.5rem; }
.method, footer { color: var(--muted); font-size: 0.85rem; }
.wide { overflow-x: auto; }
table { border-collapse: collapse; width: 100%;
  font-variant-numeric: tabular-nums; }
th, td { padding: 0.3rem 0.6rem; text-align: right;
  border-bottom: 1px solid var(--rule); white-space: pre; }
th { color: var(--muted); font-weight: 500; font-size: 0.85rem; }
th:first-child, td:first-child, .names th:nth-child(2),
.names td:nth-child(2) { text-align: left; }
svg { max-width: 100%; height: auto; margin-top: 0.8rem; }
)";

std::string row(const std::vector<std::string>& cells, const char* tag) {
  std::string html = "<tr>";
  for (const auto& cell : cells) {
    html += fmt::format("<{0}>{1}</{0}>", tag, escaped(cell));
  }
  return html + "</tr>\n";
}

std::string block(const Section& section, const std::string& chart) {
  if (section.rows.empty()) return "";
  std::string html =
      fmt::format("<h2>{}</h2>\n<div class=\"wide\">", escaped(section.title));
  const bool has_names =
      section.header.size() > 1 && section.header[1] == "Device";
  html += has_names ? "<table class=\"names\">\n" : "<table>\n";
  html += "<thead>" + row(section.header, "th") + "</thead>\n<tbody>\n";
  for (const auto& cells : section.rows) html += row(cells, "td");
  html += "</tbody></table></div>\n";
  if (!chart.empty()) html += "<div class=\"wide\">" + chart + "</div>\n";
  return html;
}

}  // namespace

std::string to_html(const Comparison& comparison) {
  std::string html = fmt::format(
      "<!doctype html>\n<html lang=\"en\">\n<head>\n<meta charset=\"utf-8\">\n"
      "<meta name=\"viewport\" content=\"width=device-width, "
      "initial-scale=1\">\n<title>lockstep compare: {0}</title>\n"
      "<style>\n{1}{2}</style>\n</head>\n<body>\n<h1>{0}</h1>\n"
      "<p class=\"method\">{3}</p>\n",
      escaped(headline(comparison)), style_sheet(), kPageStyle,
      escaped(method(comparison)));
  html += block(set_up_section(comparison), step_time_chart(comparison));
  html += block(device_section(comparison), memory_chart(comparison));
  html += block(phase_section(comparison, 0), phase_chart(comparison));
  for (const TimeLine& line : time_lines(comparison)) {
    html += fmt::format("<h2>{}</h2>\n<div class=\"wide\">{}</div>\n",
                        escaped(line.title), time_line_chart(line));
  }
  html += block(ratio_section(comparison), "");
  const auto sentences = reading(comparison);
  if (!sentences.empty()) {
    html += "<h2>What this says</h2>\n<ul>\n";
    for (const auto& sentence : sentences) {
      html += fmt::format("<li>{}</li>\n", escaped(sentence));
    }
    html += "</ul>\n";
  }
  return html + fmt::format(
                    "<footer>lockstep {} on LibTorch {}</footer>\n"
                    "</body>\n</html>\n",
                    kVersion, kTorchVersion);
}

}  // namespace lockstep::report
