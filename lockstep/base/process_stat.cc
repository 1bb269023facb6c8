#include "lockstep/base/process_stat.h"

#include <cstdlib>
#include <fstream>
#include <iterator>

namespace lockstep {

std::string process_stat(pid_t pid) {
  std::ifstream file("/proc/" + std::to_string(pid) + "/stat");
  const std::string text{std::istreambuf_iterator<char>(file), {}};
  const auto end_of_name = text.rfind(") ");
  return end_of_name == std::string::npos ? "" : text.substr(end_of_name + 2);
}

pid_t parent_of(pid_t pid) {
  const std::string fields = process_stat(pid);
  return fields.size() > 2 ? std::atoi(fields.c_str() + 2) : -1;
}

}  // namespace lockstep
