#pragma once

#include <cstddef>
#include <string>
#include <vector>

#include "lockstep/monitor/job.h"

namespace lockstep::monitor {

/// How a piece of a line stands out.
enum class Look { kPlain, kDim, kBold, kHeading, kGood, kWarning, kBad };

struct Piece {
  std::string text;  ///< UTF-8, each character one column wide
  Look look = Look::kPlain;
};
using ScreenLine = std::vector<Piece>;

/// What of the jobs is looked at.
struct View {
  size_t job = 0;        ///< which
  size_t first_row = 0;  ///< of its table of devices
  bool is_utf8 = true;   ///< else in ASCII
};

/// What `lockstep top` shows: at most `height` lines, each at most `width`
/// columns. On a narrow screen the less important columns are left out, on a
/// low one the loss curve, then rows. `view` is put right where it asks for
/// what is not there.
std::vector<ScreenLine> draw_jobs(const std::vector<Job>& jobs, View& view,
                                  int width, int height);

/// The text alone, a line each.
std::string plain_text(const std::vector<ScreenLine>& lines);

}  // namespace lockstep::monitor
