#include "lockstep/train/report/run_environment.h"

#include <array>
#include <fstream>
#include <string_view>
#include <sys/utsname.h>
#include <unistd.h>

#include <ATen/Version.h>
#include <fmt/format.h>
#include <torch/version.h>

#include "lockstep/base/cores.h"
#include "lockstep/base/env.h"
#include "lockstep/base/error.h"
#include "lockstep/base/format.h"
#include "lockstep/base/host_identity.h"
#include "lockstep/base/json.h"
#include "lockstep/device/accelerator.h"
#include "lockstep/device/device.h"

namespace lockstep::training {
namespace {

// Variables that can't hold a secret.
constexpr std::array kVariables{
    "ATEN_CPU_CAPABILITY",
    "CUBLAS_WORKSPACE_CONFIG",
    "CUDA_LAUNCH_BLOCKING",
    "CUDA_VISIBLE_DEVICES",
    "GLOO_SOCKET_IFNAME",
    "GOMP_CPU_AFFINITY",
    "KMP_AFFINITY",
    "LD_PRELOAD",
    "LOCKSTEP_CORES",
    "LOCKSTEP_ENCRYPT",
    "MALLOC_ARENA_MAX",
    "MKL_NUM_THREADS",
    "NCCL_DEBUG",
    "NCCL_IB_DISABLE",
    "NCCL_P2P_DISABLE",
    "NCCL_SOCKET_IFNAME",
    "OMP_NUM_THREADS",
    "OMP_PLACES",
    "OMP_PROC_BIND",
    "ONEDNN_MAX_CPU_ISA",
    "PYTORCH_ALLOC_CONF",
    "PYTORCH_CUDA_ALLOC_CONF",
    "TORCH_DISTRIBUTED_DEBUG",
    "ZE_AFFINITY_MASK",
};

// Returns what follows `key` and `separator` in the first line that begins with
// `key`.
std::string value_in(const char* path, std::string_view key, char separator) {
  std::ifstream file(path);
  for (std::string line; std::getline(file, line);) {
    if (!line.starts_with(key)) continue;
    const size_t at = line.find(separator);
    if (at == std::string::npos) return "";
    const size_t begin = line.find_first_not_of(" \t\"", at + 1);
    const size_t end = line.find_last_not_of(" \t\"");
    return begin == std::string::npos || end < begin
               ? ""
               : line.substr(begin, end - begin + 1);
  }
  return "";
}

// Calls `field(key, member)` for each member, except for the variables.
void for_each_field(auto& environment, const auto& field) {
  field("host", environment.host);
  field("os", environment.os);
  field("kernel", environment.kernel);
  field("cpu_model", environment.cpu_model);
  field("cores", environment.cores);
  field("memory_bytes", environment.memory_bytes);
  field("cpu_capability", environment.cpu_capability);
  field("torch", environment.torch);
  field("compiler", environment.compiler);
  field("gpus", environment.gpus);
}

}  // namespace

std::string cpu_model() {
  const std::string name = value_in("/proc/cpuinfo", "model name", ':');
  return name.empty() ? "unknown" : name;
}

RunEnvironment this_environment() {
  RunEnvironment result;
  result.host = host_name();
  result.os = value_in("/etc/os-release", "PRETTY_NAME", '=');
  utsname kernel{};
  if (::uname(&kernel) == 0) {
    result.kernel =
        fmt::format("{} {} {}", kernel.sysname, kernel.release, kernel.machine);
  }
  result.cpu_model = cpu_model();
  result.cores = static_cast<int64_t>(allowed_cores().size());
  result.memory_bytes = static_cast<int64_t>(::sysconf(_SC_PHYS_PAGES)) *
                        static_cast<int64_t>(::sysconf(_SC_PAGESIZE));
  result.cpu_capability = at::get_cpu_capability();
  result.torch = TORCH_VERSION;
#ifdef __clang__
  result.compiler = __VERSION__;
#else
  result.compiler = "GCC " __VERSION__;
#endif
  for (const Device& device : accelerator::all_devices()) {
    const auto gpu = accelerator::properties(device);
    result.gpus.push_back(
        gpu.memory_bytes == 0
            ? gpu.name
            : fmt::format("{}, {}", gpu.name,
                          format_bytes(static_cast<double>(gpu.memory_bytes))));
  }
  for (const char* name : kVariables) {
    if (const auto value = env(name))
      result.variables.emplace_back(name, *value);
  }
  return result;
}

nlohmann::ordered_json to_json(const RunEnvironment& environment) {
  nlohmann::ordered_json json;
  for_each_field(environment, [&json](const char* key, const auto& value) {
    json[key] = value;
  });
  auto& variables = json["variables"] = nlohmann::ordered_json::object();
  for (const auto& [name, value] : environment.variables) {
    variables[name] = value;
  }
  return json;
}

RunEnvironment environment_from_json(const nlohmann::json& json) {
  RunEnvironment result;
  try {
    for_each_field(result, [&json](const char* key, auto& value) {
      const auto found = json.find(key);
      if (found != json.end()) found->get_to(value);
    });
    if (const auto found = json.find("variables"); found != json.end()) {
      for (const auto& [name, value] : found->items()) {
        result.variables.emplace_back(name, value.get<std::string>());
      }
    }
  } catch (const nlohmann::json::exception& error) {
    throw IoError({.code = ErrorCode::kMalformedData,
                   .what = "a run report's environment can't be read",
                   .got = lockstep::text_of(error)});
  }
  return result;
}

}  // namespace lockstep::training
