#include "lockstep/cli/start/print.h"

#include <unistd.h>

#include <fmt/format.h>

#include "lockstep/base/terminal.h"
#include "lockstep/base/text.h"

namespace lockstep::cli {
namespace {

size_t width() { return static_cast<size_t>(terminal_width(STDOUT_FILENO)); }

}  // namespace

void print_paragraph(const std::string& text) {
  fmt::print("{}\n", wrap(text, width()));
}

void print_in_terminal(const Table& table) {
  fmt::print("{}", table.render(width()));
}

}  // namespace lockstep::cli
