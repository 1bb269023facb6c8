#include "lockstep/report/page.h"

#include <fmt/format.h>

#include "lockstep/base/version.h"
#include "lockstep/report/canvas.h"
#include "lockstep/report/rendering.h"

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

}  // namespace

std::string table_block(const Section& section, const std::string& chart) {
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

std::string page(const std::string& title, const std::string& body) {
  return fmt::format(
      "<!doctype html>\n<html lang=\"en\">\n<head>\n<meta charset=\"utf-8\">\n"
      "<meta name=\"viewport\" content=\"width=device-width, "
      "initial-scale=1\">\n<title>{}</title>\n<style>\n{}{}</style>\n"
      "</head>\n<body>\n{}<footer>lockstep {} on LibTorch {}</footer>\n"
      "</body>\n</html>\n",
      escaped(title), style_sheet(), kPageStyle, body, kVersion, kTorchVersion);
}

}  // namespace lockstep::report
