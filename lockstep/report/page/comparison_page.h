#pragma once

#include <optional>
#include <string>
#include <vector>

#include "lockstep/inspect/topology.h"
#include "lockstep/report/comparison/comparison.h"
#include "lockstep/train/environment.h"

namespace lockstep::report {

/// What a page says of the machine beside the runs' own reports.
struct PageFacts {
  std::vector<std::string> command;  ///< that made the page; may be empty
  /// Where a comparison was measured. Nothing: what the runs say.
  std::optional<train::Environment> environment;
  std::optional<inspect::Topology> topology;
};

/// The comparison as one page that needs nothing else: see Page.
std::string to_html(const Comparison& comparison, const PageFacts& facts = {});

}  // namespace lockstep::report
