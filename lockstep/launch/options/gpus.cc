#include "lockstep/launch/options/gpus.h"

#include <algorithm>
#include <array>
#include <cctype>
#include <cstdlib>
#include <dlfcn.h>
#include <optional>
#include <sstream>

#include <fmt/format.h>

#include "lockstep/base/env.h"
#include "lockstep/base/error.h"
#include "lockstep/base/text.h"

namespace lockstep::launch {
namespace {

constexpr const char* kCudaVariable = "CUDA_VISIBLE_DEVICES";
constexpr const char* kHipVariable = "HIP_VISIBLE_DEVICES";

// The CUDA driver. It stays loaded.
class Driver {
 public:
  Driver() : library_(::dlopen("libcuda.so.1", RTLD_NOW | RTLD_LOCAL)) {
    using Init = int (*)(unsigned int);
    using Count = int (*)(int*);
    const auto init = find<Init>("cuInit");
    const auto count = find<Count>("cuDeviceGetCount");
    if (init == nullptr || count == nullptr || init(0) != 0 ||
        count(&gpus_) != 0) {
      gpus_ = 0;
    }
  }

  int gpus() const { return gpus_; }

  // Returns an empty string if the driver does not know the address.
  std::string pci_address(int index) const {
    using Get = int (*)(int*, int);
    using Address = int (*)(char*, int, int);
    const auto get = find<Get>("cuDeviceGet");
    const auto address = find<Address>("cuDeviceGetPCIBusId");
    int device = 0;
    std::array<char, 32> text{};
    if (get == nullptr || address == nullptr || get(&device, index) != 0 ||
        address(text.data(), static_cast<int>(text.size()) - 1, device) != 0) {
      return "";
    }
    std::string result = text.data();
    std::ranges::transform(result, result.begin(), [](unsigned char c) {
      return static_cast<char>(std::tolower(c));
    });
    return result;
  }

 private:
  template <class Function>
  Function find(const char* name) const {
    if (library_ == nullptr) return nullptr;
    return reinterpret_cast<Function>(::dlsym(library_, name));
  }

  void* library_;
  int gpus_ = 0;
};

}  // namespace

int gpu_count() { return Driver().gpus(); }

std::vector<std::string> gpu_pci_addresses() {
  const Driver driver;
  std::vector<std::string> addresses;
  for (int index = 0; index < driver.gpus(); ++index) {
    addresses.push_back(driver.pci_address(index));
    if (addresses.back().empty()) {
      throw LaunchError(
          {.code = ErrorCode::kDeviceFailed,
           .what = fmt::format("can't find out where GPU {} is", index),
           .expected = "its PCI address from the CUDA driver",
           .fix = "leave out --numa-binding"});
    }
  }
  return addresses;
}

std::map<std::string, std::string> variables_of_own_gpu(int local_rank) {
  // HIP_VISIBLE_DEVICES comes first on ROCm. An empty CUDA_VISIBLE_DEVICES
  // hides all GPUs, so env(), which ignores it, is not used for it.
  const bool is_hip = env(kHipVariable).has_value();
  const char* name = is_hip ? kHipVariable : kCudaVariable;
  const char* visible = std::getenv(name);
  std::string gpu = std::to_string(local_rank);
  if (visible != nullptr) {
    std::istringstream list(visible);
    for (int rank = 0; rank <= local_rank; ++rank) {
      if (std::getline(list, gpu, ',') || rank == 0) continue;
      throw InvalidArgument(
          "launch",
          {.code = ErrorCode::kNoSuchDevice,
           .what =
               fmt::format("no GPU for local rank {} with --virtual-local-rank",
                           local_rank),
           .expected = fmt::format("a GPU for each worker in {}", name),
           .got = fmt::format("'{}'", visible),
           .fix = "start fewer workers with --nproc-per-node, or "
                  "list more GPUs"});
    }
    gpu = std::string(trimmed(gpu));
  }
  std::map<std::string, std::string> variables{{kCudaVariable, gpu}};
  if (is_hip) variables[kHipVariable] = gpu;
  return variables;
}

}  // namespace lockstep::launch
