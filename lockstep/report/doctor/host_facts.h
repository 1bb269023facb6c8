#pragma once

#include <cstdint>
#include <filesystem>
#include <limits>
#include <optional>
#include <string>
#include <utility>
#include <vector>

namespace lockstep::report {

struct GpuFacts {
  std::string name;
  int64_t memory_bytes = 0;
};

/// What `lockstep doctor` looks at. Limits that are not set are the largest
/// value of their type.
struct HostFacts {
  static constexpr int64_t kNoLimit = std::numeric_limits<int64_t>::max();

  std::string lockstep_version;
  std::string torch_built_with;  ///< "2.11"
  std::string torch_loaded;      ///< "2.11.0"; empty if it does not say
  std::string cpu_capability;    ///< "AVX2", "DEFAULT", ...

  bool is_cuda_built = false;
  std::string cuda_driver;  ///< its version; empty where there is no driver
  std::vector<GpuFacts> gpus;

  int cores_online = 0;
  int cores_in_affinity = 0;
  int cores_allowed = 0;
  double cpu_quota = std::numeric_limits<double>::infinity();  ///< in cores

  int64_t memory_total_bytes = 0;
  int64_t memory_available_bytes = 0;
  int64_t cgroup_memory_bytes = kNoLimit;  ///< the limit
  int64_t cgroup_used_bytes = 0;           ///< of that limit
  std::string transparent_huge_pages;      ///< always, madvise or never

  int64_t open_files = kNoLimit;
  int64_t open_files_hard = kNoLimit;
  int64_t locked_memory_bytes = kNoLimit;
  std::optional<int64_t> shm_free_bytes;  ///< of /dev/shm, if there is one

  /// Variables that are set and known to disturb, by name.
  std::vector<std::pair<std::string, std::string>> environment;
};

/// `root` is where /proc, /sys and /dev are found: a test brings its own.
HostFacts gather_host_facts(const std::filesystem::path& root = "/");

/// The least memory limit of the process's control groups (v2, or v1's own
/// mount), and what is used of it; kNoLimit and 0 where there is none.
std::pair<int64_t, int64_t> cgroup_memory(const std::filesystem::path& root);

}  // namespace lockstep::report
