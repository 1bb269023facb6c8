#include "lockstep/base/cores.h"

#include <algorithm>
#include <cerrno>
#include <fstream>
#include <limits>
#include <memory>
#include <optional>
#include <sched.h>
#include <sstream>
#include <string>
#include <system_error>
#include <thread>
#include <unistd.h>
#include <vector>

#include <fmt/format.h>
#include <fmt/ranges.h>

#include "lockstep/base/env.h"
#include "lockstep/base/error.h"
#include "lockstep/base/numbers.h"

namespace lockstep {
namespace {

/// A cpu_set_t that is large enough for `cores` cores.
struct Mask {
  explicit Mask(int cores)
      : bytes(CPU_ALLOC_SIZE(static_cast<size_t>(cores))),
        set(CPU_ALLOC(static_cast<size_t>(cores)),
            [](cpu_set_t* memory) { CPU_FREE(memory); }) {
    CPU_ZERO_S(bytes, set.get());
  }
  size_t bytes;
  std::unique_ptr<cpu_set_t, void (*)(cpu_set_t*)> set;
};

std::vector<int> affinity_mask() {
  // The kernel refuses a mask smaller than its own.
  for (int cores = CPU_SETSIZE; cores <= (1 << 20); cores *= 2) {
    const Mask mask(cores);
    // Reads the main thread's mask; the calling thread may be pinned already.
    if (::sched_getaffinity(::getpid(), mask.bytes, mask.set.get()) != 0) {
      if (errno == EINVAL) continue;
      break;
    }
    std::vector<int> found;
    for (int core = 0; core < cores; ++core) {
      if (CPU_ISSET_S(static_cast<size_t>(core), mask.bytes, mask.set.get())) {
        found.push_back(core);
      }
    }
    return found;
  }
  std::vector<int> all(std::max(1u, std::thread::hardware_concurrency()));
  for (size_t i = 0; i < all.size(); ++i) all[i] = static_cast<int>(i);
  return all;
}

const std::vector<int>& starting_mask() {
  static const std::vector<int> mask = affinity_mask();
  return mask;
}

// Reads the mask before main(), which may pin its own thread.
[[maybe_unused]] const std::vector<int>& at_start = starting_mask();

/// Returns the cores of the job, as passed by a launcher that pinned this
/// process to some of them. Returns nothing if there was no such launcher.
std::optional<std::vector<int>> cores_of_job() {
  const auto text = env(kCoresVariable);
  if (!text) return std::nullopt;
  std::vector<int> cores;
  std::istringstream stream(*text);
  for (std::string word; std::getline(stream, word, ',');) {
    const auto core = parse_number<int>(word);
    if (!core || *core < 0) {
      throw InvalidArgument("env",
                            {.code = ErrorCode::kBadVariable,
                             .what = fmt::format("bad {}", kCoresVariable),
                             .expected = "numbers such as 0,1,2",
                             .got = *text,
                             .fix = "unset it"});
    }
    cores.push_back(*core);
  }
  // The order is that of the workers' slices.
  std::vector<int> sorted = cores;
  std::sort(sorted.begin(), sorted.end());
  const bool is_job =
      std::includes(sorted.begin(), sorted.end(), starting_mask().begin(),
                    starting_mask().end());
  return is_job ? std::optional(cores) : std::nullopt;
}

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
    // A group outside of this namespace shows as /../.., which normalizes to /.
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

/// Returns the lowest limit of the group `path` under `mount` and of its
/// parents. If a container sees its own group as the mount, only the mount
/// itself exists.
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

const std::vector<int>& allowed_cores() {
  static const std::vector<int> cores = [] {
    if (auto job = cores_of_job()) return *job;
    std::vector<int> found = starting_mask();
    const double quota = std::max(1.0, cgroup_cpu_quota());
    if (quota < static_cast<double>(found.size())) {
      found.resize(static_cast<size_t>(quota));
    }
    return found;
  }();
  return cores;
}

void pin_thread(const std::vector<int>& cores) {
  if (cores.empty()) {
    throw IoError({.code = ErrorCode::kDeviceFailed,
                   .what = "can't pin a thread to no core at all"});
  }
  const auto [least, most] = std::minmax_element(cores.begin(), cores.end());
  const bool is_sane = *least >= 0 && *most < (1 << 20);
  const Mask mask(is_sane ? std::max(*most + 1, CPU_SETSIZE) : CPU_SETSIZE);
  int code = EINVAL;
  if (is_sane) {
    for (const int core : cores) {
      CPU_SET_S(static_cast<size_t>(core), mask.bytes, mask.set.get());
    }
    if (::sched_setaffinity(0, mask.bytes, mask.set.get()) == 0) return;
    code = errno;
  }
  throw IoError({.code = ErrorCode::kDeviceFailed,
                 .what = fmt::format("can't pin a thread to cores {}: {}",
                                     fmt::join(cores, ", "),
                                     std::generic_category().message(code)),
                 .expected = fmt::format("some of cores {}",
                                         fmt::join(starting_mask(), ", "))});
}

void leave_slice() {
  try {
    pin_thread(allowed_cores());
  } catch (const IoError&) {
  }
}

std::vector<int> core_share(const std::vector<int>& cores, size_t index,
                            size_t count) {
  const size_t width = cores.size() / count;
  if (width == 0) return {cores[index % cores.size()]};
  const auto begin = cores.begin() + static_cast<std::ptrdiff_t>(index * width);
  return {begin, begin + static_cast<std::ptrdiff_t>(width)};
}

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
