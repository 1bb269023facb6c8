#pragma once

#include <optional>
#include <string>
#include <vector>

#include "lockstep/inspect/topology.h"
#include "lockstep/report/comparison.h"
#include "lockstep/train/environment.h"

// How a comparison is shown: on a terminal, as a page and as a picture.
namespace lockstep::report {

enum class Colour { kNever, kAlways };

/// Colour where `fd` is a terminal and NO_COLOR is not set.
Colour colour_of(int fd);

/// The whole comparison for a terminal of `width` columns, none of its lines
/// wider: the tables, when what happens, and how to read it.
std::string to_text(const Comparison& comparison, Colour colour,
                    int width = 80);

/// What a page says of the machine beside the runs' own reports.
struct PageFacts {
  std::vector<std::string> command;  ///< that made the page; may be empty
  /// Where a comparison was measured. Nothing: what the runs say.
  std::optional<train::Environment> environment;
  std::optional<inspect::Topology> topology;
};

/// The comparison as one page that needs nothing else: see Page.
std::string to_html(const Comparison& comparison, const PageFacts& facts = {});

/// The set-up table and the charts as one picture: a whole .svg file.
std::string picture(const Comparison& comparison);

}  // namespace lockstep::report
