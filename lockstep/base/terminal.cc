#include "lockstep/base/terminal.h"

#include <algorithm>
#include <atomic>
#include <cctype>
#include <cstdlib>
#include <sys/ioctl.h>
#include <unistd.h>

#include "lockstep/base/env.h"
#include "lockstep/base/numbers.h"

namespace lockstep {
namespace {

constexpr int kUsualColumns = 80;

std::atomic<bool> has_unfinished_line = false;

}  // namespace

bool is_terminal(int fd) {
  return ::isatty(fd) == 1 && !env("OMPI_COMM_WORLD_RANK");
}

int terminal_width(int fd) {
  struct winsize size {};
  if (::ioctl(fd, TIOCGWINSZ, &size) == 0 && size.ws_col > 0) {
    return std::max<int>(size.ws_col, kMinColumns);
  }
  const auto columns = parse_number<int>(env("COLUMNS").value_or(""));
  if (!columns || *columns <= 0) return kUsualColumns;
  return std::max(*columns, kMinColumns);
}

bool wants_colour(int fd) { return is_terminal(fd) && !env("NO_COLOR"); }

void note_unfinished_line() { has_unfinished_line = true; }

std::string_view erase_unfinished_line(int fd) {
  if (!has_unfinished_line || !is_terminal(fd)) return "";
  return has_unfinished_line.exchange(false) ? "\r\x1b[2K" : "";
}

bool locale_is_utf8() {
  // setlocale() uses the same order.
  for (const char* name : {"LC_ALL", "LC_CTYPE", "LANG"}) {
    const char* value = std::getenv(name);
    if (value == nullptr || *value == '\0') continue;
    std::string locale(value);
    std::transform(locale.begin(), locale.end(), locale.begin(),
                   [](unsigned char c) { return std::tolower(c); });
    return locale.find("utf-8") != std::string::npos ||
           locale.find("utf8") != std::string::npos;
  }
  return false;
}

}  // namespace lockstep
