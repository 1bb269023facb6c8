#pragma once

#include <string>
#include <vector>

#include "lockstep/report/charts/charts.h"
#include "lockstep/report/tables/section.h"

namespace lockstep::report {

/// A page being written from the top down. It needs nothing else: no scripts,
/// nothing from the network. Light or dark as the reader's system is; readable
/// on a telephone, on paper, with the keyboard alone and by screen readers.
/// Every text is escaped.
class Page {
 public:
  /// `heading` is what the page is of, `lead` a paragraph below it.
  Page(std::string heading, std::string lead);

  /// A chapter, listed at the top of the page. One that gets nothing to show
  /// is left out.
  void begin_chapter(const std::string& title);
  void add_heading(const std::string& text);
  void add_paragraph(const std::string& text);
  void add_list(const std::vector<std::string>& items);

  enum class Cells { kFigures, kProse };
  /// Nothing if it has no rows. An empty first cell of a row belongs to the
  /// one above. Its title is the table's caption.
  void add_table(const Section& section, Cells cells = Cells::kFigures);
  /// With its figures as a table to unfold, if it brings some.
  void add_chart(const Chart& chart);
  /// Text as it is, in letters of one width. `label` says what it is.
  void add_code(const std::string& label, const std::string& text);

  /// The whole document. `title`: of the browser's window.
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

}  // namespace lockstep::report
