#pragma once

#include <cstddef>
#include <string>
#include <vector>

#include "lockstep/tools/top/job.h"

namespace lockstep::monitor {

/// The style of a piece of a line.
enum class Style { kPlain, kDim, kBold, kHeading, kGood, kWarning, kBad };

struct Piece {
  std::string text;  ///< UTF-8, each character one column wide
  Style style = Style::kPlain;
};
using ScreenLine = std::vector<Piece>;

/// The part of the jobs that is shown.
struct View {
  size_t job = 0;        ///< index of the job
  size_t first_row = 0;  ///< first row shown of its table of devices
  bool is_utf8 = true;   ///< false: ASCII
};

/// Returns the screen of `lockstep top`: at most `height` lines of at most
/// `width` columns. A narrow screen leaves out the less important columns. A
/// low screen leaves out the loss curve, then rows. Corrects `view` if it
/// refers to a job or row that does not exist.
std::vector<ScreenLine> draw_jobs(const std::vector<Job>& jobs, View& view,
                                  int width, int height);

/// Returns the text without styles, one line each.
std::string plain_text(const std::vector<ScreenLine>& lines);

}  // namespace lockstep::monitor
