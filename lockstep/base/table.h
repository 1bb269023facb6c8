#pragma once

#include <cstddef>
#include <string>
#include <string_view>
#include <vector>

namespace lockstep {

enum class Align { kLeft, kRight };

/// A table for the terminal, with box-drawing rules, or ASCII if the locale of
/// `LC_ALL`, `LC_CTYPE` or `LANG` is not UTF-8. Cells may contain UTF-8.
class Table {
 public:
  explicit Table(std::vector<std::string> header);
  /// Sets the alignment of each column. Columns without an entry are aligned
  /// left. By default the first column is aligned left, the others right.
  void align(std::vector<Align> alignment);
  /// Adds a row. Missing cells are empty. Throws InvalidArgument if there are
  /// more cells than the header has.
  void add_row(std::vector<std::string> cells);
  void add_rule();
  /// Sets the number of leading columns that name a row. The default is 1.
  void name_rows_by(size_t count);

  /// Draws the table at its full width.
  std::string render() const;
  /// Draws the table with lines of at most `width` columns (at least 10). A
  /// wider table is split into several, one below the other. Each repeats the
  /// columns that name the rows and adds as many others as fit. If no other
  /// column fits, each row becomes a list with one cell per line.
  std::string render(size_t width) const;

 private:
  using Columns = std::vector<size_t>;
  std::vector<size_t> widths() const;
  std::vector<Columns> folded(size_t width) const;
  std::string draw(const Columns& columns) const;
  std::string lists(size_t width) const;

  std::vector<std::string> header_;
  std::vector<Align> alignment_;
  size_t names_ = 1;
  std::vector<std::vector<std::string>> rows_;  // an empty row is a rule
};

/// Returns the width of the UTF-8 `text`, taking each character to be one
/// column wide.
size_t display_width(std::string_view text);

/// Returns a bar that fills `fraction` (0 to 1) of `width` columns: to an
/// eighth of a column in a UTF-8 locale, otherwise made of '#'.
std::string bar(double fraction, int width);

}  // namespace lockstep
