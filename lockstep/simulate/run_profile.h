#pragma once

#include <string>

#include "lockstep/simulate/step.h"

namespace lockstep::simulate {

/// The profile of a run on one device, from its report.
struct RunProfile {
  Profile profile;          ///< has one bucket, and no overlap
  bool has_tokens = false;  ///< samples are counted in tokens
  double checkpoint_s = 0;  ///< stall of the steps per checkpoint; 0: none
};

/// Reads `path`, a run.json of `lockstep train --report`. The first tenth of
/// the steps is left out, because it includes the time to warm up. Throws
/// IoError and DataError.
RunProfile read_run_profile(const std::string& path);

}  // namespace lockstep::simulate
