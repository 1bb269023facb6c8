#include "lockstep/cli/component.h"

namespace lockstep::cli {

Component lm_component() { return {}; }

}  // namespace lockstep::cli
