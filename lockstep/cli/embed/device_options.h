#pragma once

#include <string>
#include <vector>

#include "lockstep/base/option.h"
#include "lockstep/comm/process_group.h"
#include "lockstep/device/device.h"

namespace lockstep::cli {

struct DeviceFlags {
  std::string devices;
  bool allow_duplicates = false;
  bool oversubscribes = false;
};
/// Returns the options for devices. `default_text` explains in the help what an
/// empty list means.
std::vector<Option> device_options(DeviceFlags& flags,
                                   const std::string& default_text);

/// Parses the devices. `fallback` is used if none were given.
std::vector<Device> to_devices(const DeviceFlags& flags,
                               const std::string& fallback);

/// Returns one device for each rank of this host: the given devices, or else a
/// GPU or a slice for each rank.
std::vector<Device> rank_devices(const DeviceFlags& flags,
                                 const ProcessGroup& world);

/// Returns the name of one device: the first GPU, or the whole host.
std::string one_device();

}  // namespace lockstep::cli
