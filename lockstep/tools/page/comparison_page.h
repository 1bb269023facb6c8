#pragma once

#include <optional>
#include <string>
#include <vector>

#include "lockstep/inspect/topology.h"
#include "lockstep/tools/comparison/comparison.h"

namespace lockstep::tools {

/// Facts about the machine that a page shows in addition to the runs' reports.
struct PageFacts {
  std::vector<std::string> command;  ///< made the page; may be empty
  /// Environment in which the comparison was measured. Not set: the
  /// environments that the runs recorded.
  std::optional<training::RunEnvironment> environment{};
  std::optional<inspect::Topology> topology{};
};

/// Returns the comparison as one self-contained page. See Page.
std::string to_html(const Comparison& comparison, const PageFacts& facts = {});

}  // namespace lockstep::tools
