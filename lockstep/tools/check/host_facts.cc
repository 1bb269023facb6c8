#include <bit>
#include <fstream>
#include <iterator>
#include <regex>
#include <sched.h>
#include <sys/resource.h>
#include <sys/statvfs.h>
#include <unistd.h>

#include <ATen/Version.h>

#include "lockstep/base/cores.h"
#include "lockstep/base/env.h"
#include "lockstep/base/version.h"
#include "lockstep/device/accelerator.h"
#include "lockstep/device/cuda/cuda.h"
#include "lockstep/device/device.h"
#include "lockstep/tools/check/diagnose.h"

namespace lockstep::tools {
namespace {

namespace fs = std::filesystem;

std::string read_text(const fs::path& path) {
  std::ifstream file(path);
  return {std::istreambuf_iterator<char>(file), {}};
}

/// Returns the text that `pattern` captures in `text`, or an empty string.
std::string capture(const std::string& text, const char* pattern) {
  std::smatch match;
  return std::regex_search(text, match, std::regex(pattern)) ? match[1].str()
                                                             : std::string();
}

int64_t to_bytes(const std::string& digits) {
  return digits.empty() ? 0 : std::stoll(digits);
}

void add_memory(HostFacts& facts, const fs::path& root) {
  const std::string info = read_text(root / "proc/meminfo");
  facts.memory_total_bytes =
      1024 * to_bytes(capture(info, R"(MemTotal:\s+(\d+) kB)"));
  facts.memory_available_bytes =
      1024 * to_bytes(capture(info, R"(MemAvailable:\s+(\d+) kB)"));
  std::tie(facts.cgroup_memory_bytes, facts.cgroup_used_bytes) =
      cgroup_memory(root);
  facts.transparent_huge_pages =
      capture(read_text(root / "sys/kernel/mm/transparent_hugepage/enabled"),
              R"(\[(\w+)\])");
  struct statvfs shm {};
  if (::statvfs((root / "dev/shm").c_str(), &shm) == 0) {
    facts.shm_free_bytes =
        static_cast<int64_t>(shm.f_bavail) * static_cast<int64_t>(shm.f_frsize);
  }
}

int count_affinity() {
  // One bit per core, for more cores than any kernel supports.
  std::vector<unsigned long> mask(4096);
  const size_t bytes = mask.size() * sizeof(mask[0]);
  if (::sched_getaffinity(::getpid(), bytes,
                          reinterpret_cast<cpu_set_t*>(mask.data())) != 0) {
    return static_cast<int>(allowed_cores().size());
  }
  int count = 0;
  for (const auto word : mask) count += std::popcount(word);
  return count;
}

int64_t limit_of(rlim_t value) {
  return value == RLIM_INFINITY ? HostFacts::kNoLimit
                                : static_cast<int64_t>(value);
}

void add_limits(HostFacts& facts) {
  struct rlimit limit {};
  if (::getrlimit(RLIMIT_NOFILE, &limit) == 0) {
    facts.open_files = limit_of(limit.rlim_cur);
    facts.open_files_hard = limit_of(limit.rlim_max);
  }
  if (::getrlimit(RLIMIT_MEMLOCK, &limit) == 0) {
    facts.locked_memory_bytes = limit_of(limit.rlim_cur);
  }
}

void add_devices(HostFacts& facts, const fs::path& root) {
  facts.is_cuda_built = cuda::is_built();
  // "... Kernel Module  570.86.15 ..." or, of the open driver, "... Open Kernel
  // Module for x86_64  580.159.04 ...".
  facts.cuda_driver = capture(read_text(root / "proc/driver/nvidia/version"),
                              R"(Kernel Module.*?\s(\d+\.[.\d]+))");
  for (const Device& device : accelerator::all_devices()) {
    const auto found = accelerator::properties(device);
    auto& list = device.is_cuda() ? facts.gpus : facts.other_devices;
    list.push_back({found.name, found.memory_bytes});
  }
}

}  // namespace

std::pair<int64_t, int64_t> cgroup_memory(const fs::path& root) {
  int64_t least = HostFacts::kNoLimit;
  int64_t used = 0;
  const auto look = [&](const fs::path& group, const char* limit_name,
                        const char* used_name) {
    std::ifstream limit_file(group / limit_name);
    int64_t limit = 0;
    // "max" is not a number. v1 writes a number near 2^63 for no limit.
    if (!(limit_file >> limit) || limit >= least || limit > (1LL << 60)) return;
    least = limit;
    used = 0;
    std::ifstream(group / used_name) >> used;
  };
  const fs::path mount = root / "sys/fs/cgroup";
  const std::string own =
      capture(read_text(root / "proc/self/cgroup"), R"(0::(/[^\n]*))");
  for (fs::path path = fs::path(own).lexically_normal();;
       path = path.parent_path()) {
    look(mount / path.relative_path(), "memory.max", "memory.current");
    if (path == path.parent_path()) break;
  }
  look(mount / "memory", "memory.limit_in_bytes", "memory.usage_in_bytes");
  return {least, used};
}

HostFacts gather_host_facts(const fs::path& root) {
  HostFacts facts;
  facts.lockstep_version = kVersion;
  facts.torch_built_with = kTorchVersion;
  facts.torch_loaded =
      capture(at::show_config(), R"(TORCH_VERSION=(\d+\.\d+[.\d]*))");
  facts.cpu_capability = at::get_cpu_capability();
  add_devices(facts, root);
  facts.cores_online = static_cast<int>(::sysconf(_SC_NPROCESSORS_ONLN));
  facts.cores_in_affinity = count_affinity();
  facts.cores_allowed = static_cast<int>(allowed_cores().size());
  facts.cpu_quota = cgroup_cpu_quota(root);
  add_memory(facts, root);
  add_limits(facts);
  for (const auto& [name, why] : disturbing_variables()) {
    if (const auto value = env(name)) {
      facts.environment.emplace_back(name, *value);
    }
  }
  return facts;
}

}  // namespace lockstep::tools
