#include "lockstep/tools/check/diagnose.h"

#include <algorithm>
#include <cmath>
#include <utility>

#include <fmt/format.h>

#include "lockstep/base/format.h"

namespace lockstep::tools {
namespace {

constexpr int64_t kMiB = 1 << 20;
constexpr int64_t kGiB = 1 << 30;

std::string in_bytes(int64_t count) {
  return count == HostFacts::kNoLimit
             ? "unlimited"
             : format_bytes(static_cast<double>(count));
}

// A summary, for readers who want no details.
Finding machine(const HostFacts& facts) {
  const size_t devices = facts.gpus.size() + facts.other_devices.size();
  return {
      .topic = "machine",
      .found = fmt::format(
          "{}, {} of memory, {}, LibTorch {}",
          counted(facts.cores_allowed, "core"),
          in_bytes(facts.memory_total_bytes),
          devices == 0 ? "no GPU"
                       : counted(static_cast<int64_t>(devices), "accelerator"),
          facts.torch_built_with)};
}

Finding libtorch(const HostFacts& facts) {
  Finding finding{
      .topic = "LibTorch",
      .found = fmt::format("{} (built with {})",
                           facts.torch_loaded.empty() ? "of unknown version"
                                                      : facts.torch_loaded,
                           facts.torch_built_with)};
  const std::string prefix = facts.torch_built_with + ".";
  if (!facts.torch_loaded.empty() && !facts.torch_loaded.starts_with(prefix)) {
    finding.fail(
        "another LibTorch is loaded than this program was built with: unset "
        "LD_LIBRARY_PATH, or rebuild");
  }
  return finding;
}

Finding cpu(const HostFacts& facts) {
  Finding finding{.topic = "CPU kernels", .found = facts.cpu_capability};
  if (facts.cpu_capability == "DEFAULT") {
    finding.warn(
        "LibTorch uses no vector instructions: unset ATEN_CPU_CAPABILITY, or "
        "let the virtual machine pass the host's CPU through");
  }
  return finding;
}

Finding cuda(const HostFacts& facts) {
  Finding finding{.topic = "CUDA"};
  const bool has_driver = !facts.cuda_driver.empty();
  finding.found =
      fmt::format("{}, {}", facts.is_cuda_built ? "built in" : "not built in",
                  has_driver ? "driver " + facts.cuda_driver : "no driver");
  if (!facts.gpus.empty()) {
    finding.found +=
        ", " + counted(static_cast<int64_t>(facts.gpus.size()), "GPU");
    for (size_t i = 0; i < facts.gpus.size(); ++i) {
      finding.found += fmt::format("; cuda:{} {} {}", i, facts.gpus[i].name,
                                   in_bytes(facts.gpus[i].memory_bytes));
    }
  } else if (has_driver && !facts.is_cuda_built) {
    finding.warn(
        "there is a GPU driver: install the CUDA toolkit and rebuild (rm -r "
        "build; make build)");
  } else if (has_driver) {
    finding.warn(
        "no GPU can be used: check nvidia-smi, CUDA_VISIBLE_DEVICES, and "
        "whether the driver is new enough for this LibTorch");
  } else if (!facts.has_accelerator()) {
    finding.found += "; CPU slices stand in for GPUs";
  }
  return finding;
}

Finding accelerator(const HostFacts& facts) {
  Finding finding{
      .topic = "accelerator",
      .found =
          counted(static_cast<int64_t>(facts.other_devices.size()), "device")};
  for (const GpuFacts& device : facts.other_devices) {
    finding.found += "; " + device.name;
    if (device.memory_bytes > 0) {
      finding.found += " " + in_bytes(device.memory_bytes);
    }
  }
  return finding;
}

Finding cores(const HostFacts& facts) {
  Finding finding{.topic = "cores"};
  finding.found = fmt::format(
      "{} to train on ({} online, {} in the affinity mask, quota {})",
      facts.cores_allowed, facts.cores_online, facts.cores_in_affinity,
      std::isfinite(facts.cpu_quota) ? fmt::format("{:.1f}", facts.cpu_quota)
                                     : "none");
  if (facts.cores_allowed < 1) {
    finding.fail(
        "this process may not use any core: check taskset and cpusets");
  } else if (facts.cpu_quota < 1) {
    finding.warn(
        "the container's CPU quota is under one core: raise it (docker run "
        "--cpus)");
  } else if (facts.cores_allowed == 1 && !facts.has_accelerator()) {
    finding.warn(
        "with one core there is one CPU slice, so nothing runs in parallel: "
        "allow more (docker run --cpus, taskset)");
  }
  return finding;
}

Finding memory(const HostFacts& facts) {
  Finding finding{.topic = "memory"};
  const bool is_limited = facts.cgroup_memory_bytes != HostFacts::kNoLimit;
  const int64_t usable =
      is_limited ? std::min(facts.memory_available_bytes,
                            facts.cgroup_memory_bytes - facts.cgroup_used_bytes)
                 : facts.memory_available_bytes;
  finding.found = fmt::format(
      "{} available of {}, {}", in_bytes(usable),
      in_bytes(facts.memory_total_bytes),
      is_limited ? "container limit " + in_bytes(facts.cgroup_memory_bytes)
                 : "no container limit");
  if (usable < 256 * kMiB) {
    finding.fail(
        "not enough to load a model: end other programs, or raise "
        "the container's limit (docker run --memory)");
  } else if (usable < 2 * kGiB) {
    finding.warn(
        "enough for small models only: ResNet-18 with a batch of 64 needs 2 "
        "GiB");
  }
  return finding;
}

Finding huge_pages(const HostFacts& facts) {
  Finding finding{.topic = "huge pages",
                  .found = facts.transparent_huge_pages.empty()
                               ? "not offered by this kernel"
                               : facts.transparent_huge_pages};
  if (facts.transparent_huge_pages == "never") {
    finding.warn(
        "large tensors are slower without them: as root, run: echo madvise > "
        "/sys/kernel/mm/transparent_hugepage/enabled");
  }
  return finding;
}

Finding open_files(const HostFacts& facts) {
  Finding finding{.topic = "open files"};
  finding.found = facts.open_files == HostFacts::kNoLimit
                      ? "unlimited"
                      : fmt::format("at most {}", facts.open_files);
  if (facts.open_files < 64) {
    finding.fail(
        "ulimit -n 4096: loading data and writing checkpoints needs more");
  } else if (facts.open_files < 1024) {
    finding.warn(facts.open_files_hard >= 4096
                     ? "raise it: ulimit -n 4096"
                     : "raise nofile in /etc/security/limits.conf");
  }
  return finding;
}

Finding locked_memory(const HostFacts& facts) {
  Finding finding{.topic = "locked memory",
                  .found = in_bytes(facts.locked_memory_bytes)};
  // Only pinned host memory for accelerators needs large amounts of locked
  // memory.
  if (facts.has_accelerator() && facts.locked_memory_bytes < 64 * kMiB) {
    finding.warn("fast copies to devices lock memory: ulimit -l unlimited");
  }
  return finding;
}

Finding shared_memory(const HostFacts& facts) {
  Finding finding{.topic = "/dev/shm"};
  const int64_t free = facts.shm_free_bytes.value_or(0);
  finding.found =
      facts.shm_free_bytes ? in_bytes(free) + " free" : "not mounted";
  // Docker's default is 64 MiB.
  if (free <= 64 * kMiB) {
    finding.warn(
        "processes on one machine share memory there: docker run --shm-size "
        "1g, or mount a larger tmpfs");
  }
  return finding;
}

Finding variable(const std::string& name, const std::string& value) {
  Finding finding{.topic = name, .verdict = Verdict::kWarn, .found = value};
  for (const auto& [known, fix] : disturbing_variables()) {
    if (known == name) finding.fix = fix;
  }
  return finding;
}

}  // namespace

const std::vector<std::pair<std::string, std::string>>& disturbing_variables() {
  static const std::vector<std::pair<std::string, std::string>> kVariables = {
      {"OMP_NUM_THREADS",
       "unset it: each slice sets its own number of threads, and work outside "
       "of slices would be slower"},
      {"MKL_NUM_THREADS",
       "unset it: it overrides the number of threads of a slice"},
      {"OMP_PROC_BIND", "unset it: it fights the pinning of slices to cores"},
      {"OMP_PLACES", "unset it: it fights the pinning of slices to cores"},
      {"GOMP_CPU_AFFINITY",
       "unset it: it moves the threads of all slices to the same cores"},
      {"KMP_AFFINITY", "unset it: it fights the pinning of slices to cores"},
      {"ATEN_CPU_CAPABILITY",
       "unset it: LibTorch then uses the best kernels for this CPU"},
      {"ONEDNN_MAX_CPU_ISA",
       "unset it: oneDNN then uses the best kernels for this CPU"},
      {"CUDA_LAUNCH_BLOCKING",
       "unset it unless you debug: GPUs wait for each kernel"},
      {"CUBLAS_WORKSPACE_CONFIG",
       "fine for reproducible runs, but GPUs may be slower"},
      {"LD_PRELOAD",
       "another allocator or OpenMP in it changes what is measured"},
  };
  return kVariables;
}

std::vector<Finding> diagnose(const HostFacts& facts) {
  std::vector<Finding> details = {
      {.topic = "Lockstep", .found = facts.lockstep_version},
      libtorch(facts),
      cpu(facts),
      cuda(facts),
      cores(facts),
      memory(facts),
      huge_pages(facts),
      open_files(facts),
      locked_memory(facts),
      shared_memory(facts)};
  if (!facts.other_devices.empty()) details.push_back(accelerator(facts));
  std::vector<Finding> findings = {machine(facts)};
  for (Finding& finding : details) {
    finding.is_detail = true;
    findings.push_back(std::move(finding));
  }
  for (const auto& [name, value] : facts.environment) {
    findings.push_back(variable(name, value));
  }
  return findings;
}

}  // namespace lockstep::tools
