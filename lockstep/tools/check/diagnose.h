#pragma once

#include <cstdint>
#include <filesystem>
#include <limits>
#include <optional>
#include <string>
#include <utility>
#include <vector>

namespace lockstep::tools {

struct GpuFacts {
  std::string name;
  int64_t memory_bytes = 0;
};

/// Facts that `lockstep check` examines. A limit that is not set is the
/// largest value of its type.
struct HostFacts {
  static constexpr int64_t kNoLimit = std::numeric_limits<int64_t>::max();

  std::string lockstep_version;
  std::string torch_built_with;  ///< "2.11"
  std::string torch_loaded;      ///< "2.11.0"; empty if unknown
  std::string cpu_capability;    ///< "AVX2", "DEFAULT", ...

  bool is_cuda_built = false;
  std::string cuda_driver;  ///< version; empty if there is no driver
  std::vector<GpuFacts> gpus;
  /// Devices of an accelerator other than CUDA, named as "xpu:0".
  std::vector<GpuFacts> other_devices;

  bool has_accelerator() const {
    return !gpus.empty() || !other_devices.empty();
  }

  int cores_online = 0;
  int cores_in_affinity = 0;
  int cores_allowed = 0;
  double cpu_quota = std::numeric_limits<double>::infinity();  ///< in cores

  int64_t memory_total_bytes = 0;
  int64_t memory_available_bytes = 0;
  int64_t cgroup_memory_bytes = kNoLimit;  ///< the limit
  int64_t cgroup_used_bytes = 0;           ///< memory used within that limit
  std::string transparent_huge_pages;      ///< always, madvise or never

  int64_t open_files = kNoLimit;
  int64_t open_files_hard = kNoLimit;
  int64_t locked_memory_bytes = kNoLimit;
  std::optional<int64_t> shm_free_bytes;  ///< unset: not mounted

  /// Variables that are set and known to disturb training, by name.
  std::vector<std::pair<std::string, std::string>> environment;
};

/// `root` is the folder that contains /proc, /sys and /dev. Tests pass another
/// one.
HostFacts gather_host_facts(const std::filesystem::path& root = "/");

/// Returns the lowest memory limit of the process's control groups (v2, or v1
/// with a separate mount) and the memory used within it. Returns kNoLimit and 0
/// if there is no limit.
std::pair<int64_t, int64_t> cgroup_memory(const std::filesystem::path& root);

enum class Verdict {
  kOk,
  kWarn,  ///< training works, but more slowly or with less than possible
  kFail,  ///< training is impossible
};

/// A finding about one part of the installation: a line of `lockstep check`.
struct Finding {
  std::string topic;
  Verdict verdict = Verdict::kOk;
  std::string found{};
  std::string fix{};       ///< how to fix it; empty if all is well
  bool is_detail = false;  ///< shown with --verbose, or if something is wrong

  /// Set the verdict and the fix.
  void warn(const std::string& how_to_fix) {
    verdict = Verdict::kWarn;
    fix = how_to_fix;
  }
  void fail(const std::string& how_to_fix) {
    verdict = Verdict::kFail;
    fix = how_to_fix;
  }
};

/// Judges every fact, in the order in which the findings are shown.
std::vector<Finding> diagnose(const HostFacts& facts);

/// Environment variables that disturb training, each with its fix.
const std::vector<std::pair<std::string, std::string>>& disturbing_variables();

}  // namespace lockstep::tools
