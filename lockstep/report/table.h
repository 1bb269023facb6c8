#pragma once

#include <string>
#include <vector>

namespace lockstep::report {

enum class Align { kLeft, kRight };

/// A table for the terminal, with box-drawing rules (ASCII when `LC_ALL`,
/// `LC_CTYPE` or `LANG` names no UTF-8 locale). Cells may hold UTF-8.
class Table {
 public:
  explicit Table(std::vector<std::string> header);
  void align(std::vector<Align> alignment);
  void add_row(std::vector<std::string> cells);
  void add_rule();
  std::string render() const;

 private:
  std::vector<std::string> header_;
  std::vector<Align> alignment_;
  std::vector<std::vector<std::string>> rows_;  // an empty row is a rule
};

}  // namespace lockstep::report
