#include "lockstep/cli/embed/device_options.h"

#include <fmt/format.h>

#include "lockstep/base/cores.h"
#include "lockstep/base/error.h"
#include "lockstep/cli/start/checks.h"
#include "lockstep/device/accelerator.h"

namespace lockstep::cli {

std::vector<Option> device_options(DeviceFlags& flags,
                                   const std::string& default_text) {
  constexpr const char* kMore = "More about devices";
  return {
      {.name = "--devices",
       .value = &flags.devices,
       .help = "auto or all (every GPU or other accelerator; without one, a "
               "slice for each core), a count (2, 2xcpu, 2xcuda), cpu, cuda, "
               "or a list (cuda:0,cuda:1)",
       .type = "LIST",
       .default_text = default_text,
       .group = "Devices"},
      {.name = "--allow-duplicate-devices",
       .value = &flags.allow_duplicates,
       .help = "allow a device to be listed more than once",
       .topic = kMore},
      {.name = "--oversubscribe",
       .value = &flags.oversubscribes,
       .help = "split the host into more slices than it has cores; slices then "
               "take turns on a core",
       .topic = kMore},
  };
}

std::vector<Device> to_devices(const DeviceFlags& flags,
                               const std::string& fallback) {
  try {
    return devices(
        flags.devices.empty() ? fallback : flags.devices,
        flags.allow_duplicates ? Duplicates::kAllow : Duplicates::kRefuse,
        flags.oversubscribes ? Oversubscription::kAllow
                             : Oversubscription::kRefuse);
  } catch (const Error& error) {
    throw BadUsage(error.what());
  }
}

std::vector<Device> rank_devices(const DeviceFlags& flags,
                                 const ProcessGroup& world) {
  const auto ranks = static_cast<size_t>(world.local_size());
  if (!flags.devices.empty()) return to_devices(flags, "all");
  if (accelerator::available()) return to_devices(flags, "all");
  if (allowed_cores().size() >= ranks) {
    return to_devices(flags, fmt::format("{}xcpu", ranks));
  }
  // Each rank uses the cores that its launcher gave it.
  return std::vector<Device>(ranks, Device{});
}

std::string one_device() {
  const auto type = accelerator::available();
  return Device{.type = type.value_or(c10::kCPU)}.name();
}

}  // namespace lockstep::cli
