#include "lockstep/report/colour.h"

#include <cstdlib>

#include "lockstep/base/terminal.h"

namespace lockstep::report {

Colour colour_of(int fd) {
  const char* no_colour = std::getenv("NO_COLOR");
  const bool is_refused = no_colour != nullptr && *no_colour != '\0';
  return is_terminal(fd) && !is_refused ? Colour::kAlways : Colour::kNever;
}

}  // namespace lockstep::report
