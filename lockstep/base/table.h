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
  std::string render() const;

 private:
  std::vector<std::string> header_;
  std::vector<Align> alignment_;
  std::vector<std::vector<std::string>> rows_;  // an empty row is a rule
};

/// Characters that UTF-8 `text` shows as, each taken to be one column wide.
size_t display_width(std::string_view text);

/// A bar of `fraction` (0 to 1) of `width` columns, to an eighth of a column
/// in a UTF-8 locale, else of '#'.
std::string bar(double fraction, int width);

}  // namespace lockstep
