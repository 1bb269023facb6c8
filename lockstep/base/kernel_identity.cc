#include "lockstep/base/kernel_identity.h"

#include <array>
#include <fstream>
#include <unistd.h>

namespace lockstep {

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
