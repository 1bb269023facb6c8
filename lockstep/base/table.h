#pragma once

#include <cstddef>
#include <string>
#include <string_view>
#include <vector>

namespace lockstep {

enum class Align { kLeft, kRight };

/// A table for the terminal, with box-drawing rules (ASCII when `LC_ALL`,
/// `LC_CTYPE` or `LANG` names no UTF-8 locale). Cells may hold UTF-8.
class Table {
 public:
  explicit Table(std::vector<std::string> header);
  /// One entry a column; columns beyond it are aligned left. Default: the
  /// first column left, the others right.
  void align(std::vector<Align> alignment);
  /// Missing cells are empty. Throws InvalidArgument for more cells than the
  /// header has.
  void add_row(std::vector<std::string> cells);
  void add_rule();
  /// The first `count` columns say what a row is of; without it the first does.
  void name_rows_by(size_t count);

  /// As wide as it is.
  std::string render() const;
  /// No line is wider than `width` columns (at least 10). A table that is wider
  /// becomes several, one below the other, of as many columns as there is room
  /// for, each after those that name the row. Where there is no room for those
  /// and one more, each row becomes a list of its cells, one a line.
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

/// Characters that UTF-8 `text` shows as, each taken to be one column wide.
size_t display_width(std::string_view text);

/// A bar of `fraction` (0 to 1) of `width` columns, to an eighth of a column
/// in a UTF-8 locale, else of '#'.
std::string bar(double fraction, int width);

}  // namespace lockstep
