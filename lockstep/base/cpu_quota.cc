#include "lockstep/base/cpu_quota.h"

#include <algorithm>
#include <fstream>
#include <limits>
#include <optional>
#include <sstream>
#include <string>
#include <vector>

namespace lockstep {
namespace {

namespace fs = std::filesystem;

constexpr double kNoLimit = std::numeric_limits<double>::infinity();

/// One line of /proc/self/cgroup, `id:controllers:path`.
struct Membership {
  std::string controllers;  // empty: cgroup v2
  fs::path path;
};

std::vector<Membership> memberships(const fs::path& root) {
  std::vector<Membership> found;
  std::ifstream file(root / "proc/self/cgroup");
  for (std::string line; std::getline(file, line);) {
    const size_t first = line.find(':');
    const size_t second = line.find(':', first + 1);
    if (first == std::string::npos || second == std::string::npos) continue;
    // A group outside of this namespace shows as /../..: normal form is /.
    const fs::path path = fs::path(line.substr(second + 1)).lexically_normal();
    found.push_back({line.substr(first + 1, second - first - 1), path});
  }
  return found;
}

std::optional<double> read_number(const fs::path& path) {
  std::ifstream file(path);
  double value = 0;
  if (file >> value) return value;
  return std::nullopt;
}

double limit_v2(const fs::path& group) {
  std::ifstream file(group / "cpu.max");  // "200000 100000" or "max 100000"
  double quota = 0, period = 0;
  if (!(file >> quota >> period) || quota <= 0 || period <= 0) return kNoLimit;
  return quota / period;
}

double limit_v1(const fs::path& group) {
  const double quota = read_number(group / "cpu.cfs_quota_us").value_or(-1);
  const double period = read_number(group / "cpu.cfs_period_us").value_or(0);
  if (quota <= 0 || period <= 0) return kNoLimit;
  return quota / period;
}

/// The least limit of `path` under `mount` and of all groups around it. Where
/// a container sees its own group as the mount, only the last one exists.
template <typename Limit>
double least_limit(const fs::path& mount, fs::path path, Limit limit) {
  double least = kNoLimit;
  while (true) {
    least = std::min(least, limit(mount / path.relative_path()));
    if (path == path.parent_path()) return least;
    path = path.parent_path();
  }
}

bool lists_cpu(const std::string& controllers) {
  std::istringstream names(controllers);
  for (std::string name; std::getline(names, name, ',');) {
    if (name == "cpu") return true;
  }
  return false;
}

}  // namespace

double cgroup_cpu_quota(const fs::path& root) {
  const fs::path mounts = root / "sys/fs/cgroup";
  double least = kNoLimit;
  for (const Membership& member : memberships(root)) {
    if (member.controllers.empty()) {
      for (const fs::path& mount : {mounts, mounts / "unified"}) {
        least = std::min(least, least_limit(mount, member.path, limit_v2));
      }
    } else if (lists_cpu(member.controllers)) {
      for (const fs::path& mount :
           {mounts / member.controllers, mounts / "cpu"}) {
        least = std::min(least, least_limit(mount, member.path, limit_v1));
      }
    }
  }
  return least;
}

}  // namespace lockstep
