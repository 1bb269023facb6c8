#include "lockstep/parallel/group/balance.h"

#include <algorithm>

#include <fmt/format.h>

#include "lockstep/base/log.h"
#include "lockstep/device/cuda/cuda.h"

namespace lockstep {
namespace {

constexpr double kMinShare = 0.75;

std::optional<std::string> imbalance_of(std::span<const Capacity> devices,
                                        int64_t Capacity::*what,
                                        const char* what_name) {
  const auto [least, most] = std::minmax_element(
      devices.begin(), devices.end(),
      [&](const Capacity& a, const Capacity& b) { return a.*what < b.*what; });
  if (static_cast<double>((*least).*what) >=
      kMinShare * static_cast<double>((*most).*what)) {
    return std::nullopt;
  }
  return fmt::format(
      "there is an imbalance between the devices: {} has less than 75 % of "
      "the {} of {}, and every step waits for it; you may want to leave it "
      "out of the list of devices",
      least->name, what_name, most->name);
}

}  // namespace

std::optional<std::string> imbalance(std::span<const Capacity> devices) {
  if (devices.empty()) return std::nullopt;
  if (auto text = imbalance_of(devices, &Capacity::memory_bytes, "memory")) {
    return text;
  }
  return imbalance_of(devices, &Capacity::cores, "cores");
}

void warn_of_imbalance(const std::vector<Device>& devices) {
  std::vector<Capacity> capacities;
  for (const Device& device : devices) {
    Capacity capacity{.name = device.name()};
    if (device.is_cuda()) {
      const auto properties = cuda::properties(device.index);
      capacity.memory_bytes = properties.memory_bytes;
      capacity.cores = properties.multiprocessors;
    } else if (device.is_cpu()) {
      capacity.cores = static_cast<int64_t>(cores_of(device).size());
    }
    capacities.push_back(std::move(capacity));
  }
  if (const auto text = imbalance(capacities)) {
    warn_once("imbalance", "parallel", *text);
  }
}

}  // namespace lockstep
