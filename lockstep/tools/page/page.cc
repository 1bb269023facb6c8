#include "lockstep/tools/page/page.h"

#include <algorithm>
#include <cctype>

#include <fmt/format.h>

#include "lockstep/base/version.h"

namespace lockstep::tools {
namespace {

// The CSS of a page, which is used in addition to style_sheet().
constexpr const char* kPageStyle = R"(:root { color-scheme: light dark; }
* { box-sizing: border-box; }
body { margin: 0 auto; max-width: 714px; padding: 1rem 16px 3rem;
  background: var(--paper); color: var(--ink);
  font: 15px/1.5 system-ui, sans-serif; }
h1, h2, h3, p, li, caption, figcaption { overflow-wrap: anywhere; }
h1 { font-size: 1.4rem; line-height: 1.25; margin: 0.5rem 0; }
h2 { font-size: 1.15rem; margin: 2.2rem 0 0.5rem; }
h3 { font-size: 1rem; margin: 1.2rem 0 0.4rem; }
a { color: var(--link); }
.skip { position: absolute; left: -100vw; top: 0; padding: 0.5rem 1rem;
  background: var(--paper); z-index: 1; }
.skip:focus { left: 0; }
:focus-visible { outline: 3px solid var(--link); outline-offset: 2px; }
.method, footer { color: var(--muted); font-size: 0.85rem; }
footer { margin-top: 1.5rem; }
nav ul { display: flex; flex-wrap: wrap; gap: 0.3rem 1.1rem; padding: 0;
  margin: 0.8rem 0; list-style: none; }
nav a { display: inline-block; padding: 0.2rem 0; }
.scroll { overflow-x: auto; max-width: 100%; }
.scroll + .scroll { margin-top: 1rem; }
table { border-collapse: collapse; min-width: 100%;
  font-variant-numeric: tabular-nums; }
caption { text-align: left; color: var(--muted); font-size: 0.85rem;
  padding-bottom: 0.2rem; }
th, td { padding: 0.3rem 0.7rem 0.3rem 0; text-align: right;
  vertical-align: top; border-bottom: 1px solid var(--rule);
  white-space: pre; font-weight: 400; }
th:last-child, td:last-child { padding-right: 0; }
thead th { color: var(--muted); font-weight: 500; font-size: 0.85rem;
  white-space: normal; vertical-align: bottom; }
.left { text-align: left; }
.prose th, .prose td { white-space: normal; overflow-wrap: anywhere;
  min-width: 7rem; text-align: left; }
td.left { white-space: normal; }
tbody th { text-align: left; white-space: normal; overflow-wrap: break-word;
  min-width: 6rem; max-width: 12rem; }
pre { margin: 0; padding: 0.6rem 0.8rem; background: var(--code);
  font: 13px/1.5 ui-monospace, monospace; }
figure { margin: 1rem 0; }
figcaption { font-size: 0.9rem; font-weight: 500; margin-bottom: 0.4rem; }
figcaption small { display: block; color: var(--muted); font-weight: 400;
  font-size: 0.85rem; }
details { margin-top: 0.3rem; font-size: 0.9rem; }
summary { color: var(--link); cursor: pointer; padding: 0.2rem 0; }
svg { display: block; }
.for-narrow { display: none; overflow-x: auto; }
@media (max-width: 711px) {
  .for-wide { display: none; } .for-narrow { display: block; }
  th, td { padding-right: 0.4rem; }
  tbody th { min-width: 5.2rem; }
}
@media print {
  body { max-width: none; padding: 0; font-size: 10.5pt; }
  nav, .skip { display: none; }
  .for-wide { display: block; } .for-narrow { display: none; }
  .for-wide svg { max-width: 100%; height: auto; }
  .scroll { overflow: visible; }
  th, td, .prose th, .prose td, tbody th { white-space: pre-wrap;
    overflow-wrap: anywhere; min-width: 0; }
  pre { white-space: pre-wrap; overflow-wrap: anywhere;
    border: 1px solid var(--rule); }
  figure, tr, pre, li { break-inside: avoid; }
  h1, h2, h3, caption, figcaption { break-after: avoid; }
  * { print-color-adjust: exact; -webkit-print-color-adjust: exact; }
}
)";

// Returns true for cells that are aligned right: "12.3 ms", "-", "1.5x", "±2
// %".
bool is_figure(const std::string& cell) {
  if (cell.empty() || cell == "-" || cell.starts_with("±")) return true;
  const char first = cell.front() == '-' && cell.size() > 1 ? cell[1] : cell[0];
  return std::isdigit(static_cast<unsigned char>(first)) != 0;
}

// Returns the columns that have names rather than figures. The first column
// always has names.
std::vector<bool> name_columns(const Section& section) {
  std::vector<bool> has_names(section.header.size(), false);
  for (size_t column = 0; column < has_names.size(); ++column) {
    has_names[column] =
        column == 0 ||
        std::ranges::any_of(section.rows, [column](const auto& row) {
          return column < row.size() && !is_figure(row[column]);
        });
  }
  return has_names;
}

const char* side(bool has_names) { return has_names ? " class=\"left\"" : ""; }

std::string header_row(const Section& section,
                       const std::vector<bool>& has_names) {
  std::string html = "<thead><tr>";
  for (size_t column = 0; column < section.header.size(); ++column) {
    const std::string& cell = section.header[column];
    html += cell.empty() ? "<td></td>"
                         : fmt::format("<th scope=\"col\"{}>{}</th>",
                                       side(has_names[column]), escaped(cell));
  }
  return html + "</tr></thead>\n";
}

// Returns the number of rows in the group that starts at `row`: that row and
// the following rows whose first cell is empty.
size_t rows_of_group(const Section& section, size_t row) {
  size_t end = row + 1;
  while (end < section.rows.size() && !section.rows[end].empty() &&
         section.rows[end].front().empty()) {
    ++end;
  }
  return end - row;
}

// Returns `text` with a percent sign kept on the line of its number.
std::string with_whole_percentages(const std::string& text) {
  std::string result;
  size_t begin = 0;
  for (size_t space = 0;
       (space = text.find(" %", begin)) != std::string::npos;) {
    result += text.substr(begin, space - begin) + "\xc2\xa0%";  // U+00A0
    begin = space + 2;
  }
  return result + text.substr(begin);
}

std::string body_rows(const Section& section,
                      const std::vector<bool>& has_names) {
  std::string html = "<tbody>\n";
  for (size_t row = 0; row < section.rows.size(); ++row) {
    const auto& cells = section.rows[row];
    html += "<tr>";
    for (size_t column = 0; column < cells.size(); ++column) {
      if (column == 0 && cells[0].empty() && row > 0) continue;
      if (column > 0) {
        const bool is_name = column < has_names.size() && has_names[column];
        const std::string& cell = cells[column];
        html +=
            fmt::format("<td{}>{}</td>", side(is_name),
                        escaped(is_name ? with_whole_percentages(cell) : cell));
        continue;
      }
      const size_t count = rows_of_group(section, row);
      html +=
          fmt::format("<th scope=\"row\"{}>{}</th>",
                      count > 1 ? fmt::format(" rowspan=\"{}\"", count) : "",
                      escaped(cells[0]));
    }
    html += "</tr>\n";
  }
  return html + "</tbody>";
}

// Content that is wider than the screen can be scrolled by touch, or with the
// keyboard once it has the focus.
std::string scrollable(const std::string& label, const std::string& content) {
  return fmt::format(
      "<div class=\"scroll\" role=\"group\" tabindex=\"0\" aria-label=\"{}\">"
      "{}</div>\n",
      escaped(label), content);
}

std::string table_of(const Section& section, bool is_prose) {
  const auto has_names = name_columns(section);
  return scrollable(
      "Table: " + section.title,
      fmt::format("<table{}>\n<caption>{}</caption>\n{}{}</table>",
                  is_prose ? " class=\"prose\"" : "", escaped(section.title),
                  header_row(section, has_names),
                  body_rows(section, has_names)));
}

std::string drawn(const Chart& chart, const ChartLayout& layout,
                  const std::string& id) {
  Canvas canvas(layout);
  canvas.y = 2;
  chart.draw(canvas);
  const std::string description =
      chart.note.empty() ? "The table beside it has its figures." : chart.note;
  return canvas.finish(id, chart.title, description);
}

}  // namespace

Page::Page(std::string heading, std::string lead)
    : heading_(std::move(heading)), lead_(std::move(lead)) {}

void Page::begin_chapter(const std::string& title) {
  chapters_.push_back({.title = title, .html = ""});
}

void Page::add_heading(const std::string& text) {
  add(fmt::format("<h3>{}</h3>\n", escaped(text)));
}

void Page::add_list(const std::vector<std::string>& items) {
  if (items.empty()) return;
  add("<ul>\n");
  for (const auto& item : items) {
    add(fmt::format("<li>{}</li>\n", escaped(with_whole_percentages(item))));
  }
  add("</ul>\n");
}

void Page::add_table(const Section& section, Cells cells) {
  if (section.rows.empty()) return;
  add(table_of(section, cells == Cells::kProse));
}

void Page::add_chart(const Chart& chart) {
  if (chart.is_empty()) return;
  const int number = ++charts_;
  std::string html = fmt::format(
      "<figure>\n<figcaption>{}{}</figcaption>\n", escaped(chart.title),
      chart.note.empty() ? "" : "<small>" + escaped(chart.note) + "</small>");
  html += fmt::format(
      "<div class=\"for-wide\">{}</div>\n<div class=\"for-narrow\">{}</div>\n",
      drawn(chart, kWideLayout, fmt::format("w{}", number)),
      drawn(chart, kNarrowLayout, fmt::format("n{}", number)));
  if (!chart.figures.rows.empty()) {
    html += fmt::format(
        "<details><summary>The figures of this chart as a table</summary>\n"
        "{}</details>\n",
        table_of(chart.figures, /*is_prose=*/false));
  }
  add(html + "</figure>\n");
}

void Page::add_code(const std::string& label, const std::string& text) {
  add(scrollable(label, "<pre>" + escaped(text) + "</pre>"));
}

std::string Page::finish(const std::string& title) const {
  std::string contents;
  std::string body;
  int number = 0;
  for (const auto& [chapter, html] : chapters_) {
    if (html.empty()) continue;
    ++number;
    contents += fmt::format("<li><a href=\"#chapter-{}\">{}</a></li>\n", number,
                            escaped(chapter));
    body += fmt::format(
        "<section aria-labelledby=\"chapter-{0}\">\n<h2 id=\"chapter-{0}\">"
        "{1}</h2>\n{2}</section>\n",
        number, escaped(chapter), html);
  }
  return fmt::format(
      "<!doctype html>\n<html lang=\"en\">\n<head>\n<meta charset=\"utf-8\">\n"
      "<meta name=\"viewport\" content=\"width=device-width, "
      "initial-scale=1\">\n<meta name=\"color-scheme\" content=\"light dark\">"
      "\n<title>{}</title>\n<style>\n{}{}</style>\n</head>\n<body>\n"
      "<a class=\"skip\" href=\"#content\">To the content</a>\n"
      "<header>\n<h1>{}</h1>\n<p class=\"method\">{}</p>\n</header>\n"
      "<nav aria-label=\"Chapters\">\n<ul>\n{}</ul>\n</nav>\n"
      "<main id=\"content\" tabindex=\"-1\">\n{}</main>\n"
      "<footer>lockstep {} on LibTorch {}</footer>\n</body>\n</html>\n",
      escaped(title), style_sheet(), kPageStyle, escaped(heading_),
      escaped(lead_), contents, body, kVersion, kTorchVersion);
}

}  // namespace lockstep::tools
