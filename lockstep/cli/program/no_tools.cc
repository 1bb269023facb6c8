#include "lockstep/cli/component.h"

namespace lockstep::cli {

Component tools_component(const std::vector<MakeFamily>& /*families*/) {
  return {};
}

}  // namespace lockstep::cli
