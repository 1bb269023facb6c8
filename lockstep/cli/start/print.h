#pragma once

#include <string>

#include "lockstep/base/table.h"

namespace lockstep::cli {

/// Print to stdout, in the width of the terminal.
void print_paragraph(const std::string& text);
void print_in_terminal(const Table& table);

}  // namespace lockstep::cli
