#pragma once

#include <string>
#include <vector>

#include "lockstep/tools/charts/charts.h"
#include "lockstep/tools/tables/section.h"

namespace lockstep::tools {

/// Builds a self-contained HTML page from the top down, without scripts or
/// anything from the network. The page is light or dark like the reader's
/// system. It is readable on a phone, on paper, with only the keyboard and by
/// screen readers. All text is escaped.
class Page {
 public:
  /// `heading` is the title of the page, `lead` a paragraph below it.
  Page(std::string heading, std::string lead);

  /// Begins a chapter, which is listed at the top of the page. A chapter
  /// without content is left out.
  void begin_chapter(const std::string& title);
  void add_heading(const std::string& text);
  void add_list(const std::vector<std::string>& items);

  enum class Cells { kFigures, kProse };
  /// Adds a table unless it has no rows. Its title becomes the caption. A row
  /// whose first cell is empty belongs to the row above.
  void add_table(const Section& section, Cells cells = Cells::kFigures);
  /// Adds a chart. Its figures, if any, are added as a table that can be
  /// unfolded.
  void add_chart(const Chart& chart);
  /// Adds preformatted text in a monospace font. `label` describes it.
  void add_code(const std::string& label, const std::string& text);

  /// Returns the whole document. `title` is the title of the browser window.
  std::string finish(const std::string& title) const;

 private:
  struct Chapter {
    std::string title;
    std::string html;
  };
  void add(const std::string& html) { chapters_.back().html += html; }

  std::string heading_;
  std::string lead_;
  std::vector<Chapter> chapters_;
  int charts_ = 0;
};

}  // namespace lockstep::tools
