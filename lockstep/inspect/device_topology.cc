#include "lockstep/inspect/device_topology.h"

#include <string>
#include <vector>

#include <fmt/format.h>

#include "lockstep/base/error.h"
#include "lockstep/device/cuda.h"
#include "lockstep/inspect/host_topology.h"
#include "lockstep/inspect/nvml.h"

namespace lockstep::inspect {

Topology device_topology(std::span<const Device> devices) {
  if (devices.front().is_cpu()) return host_topology(devices);
  std::vector<std::string> uuids;
  for (const Device& device : devices) {
    uuids.push_back(cuda::uuid(device.index));
  }
  const auto nvml = Nvml::open();
  if (!nvml) {
    throw DeviceError({.code = ErrorCode::kDeviceFailed,
                       .what = "NVML, which knows how GPUs are connected, does "
                               "not answer",
                       .expected = "libnvidia-ml.so.1 of the driver",
                       .fix = "install the driver's own libraries"});
  }
  Topology topology = nvml->topology(uuids);
  for (size_t i = 0; i < devices.size(); ++i) {
    topology.devices[i].name = fmt::format("GPU{}", devices[i].index);
  }
  return topology;
}

}  // namespace lockstep::inspect
