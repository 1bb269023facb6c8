#include "lockstep/report/colour.h"

#include "lockstep/base/terminal.h"

namespace lockstep::report {

Colour colour_of(int fd) {
  return wants_colour(fd) ? Colour::kAlways : Colour::kNever;
}

}  // namespace lockstep::report
