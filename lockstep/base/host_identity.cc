#include "lockstep/base/host_identity.h"

#include <array>
#include <fstream>
#include <unistd.h>

#include <climits>

namespace lockstep {

std::string host_name() {
  std::array<char, HOST_NAME_MAX + 1> name{};
  ::gethostname(name.data(), name.size() - 1);
  return name.data();
}

std::string boot_id() {
  std::ifstream file("/proc/sys/kernel/random/boot_id");
  std::string line;
  std::getline(file, line);
  return line;
}

std::string namespace_id(const char* kind) {
  std::array<char, 64> name{};
  const std::string path = std::string("/proc/self/ns/") + kind;
  const ssize_t size = ::readlink(path.c_str(), name.data(), name.size() - 1);
  return size > 0 ? name.data() : std::string(kind) + ":?";
}

}  // namespace lockstep
