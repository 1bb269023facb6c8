#include "lockstep/base/host_name.h"

#include <array>
#include <unistd.h>

#include <climits>

namespace lockstep {

std::string host_name() {
  std::array<char, HOST_NAME_MAX + 1> name{};
  ::gethostname(name.data(), name.size() - 1);
  return name.data();
}

}  // namespace lockstep
