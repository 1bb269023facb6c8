#pragma once

#include <string>
#include <vector>

#include <CLI/CLI.hpp>

#include "lockstep/comm/world.h"
#include "lockstep/device/device.h"

namespace lockstep::cli {

struct DeviceFlags {
  std::string devices;
  bool allow_duplicates = false;
  bool oversubscribes = false;
};
/// `default_text` says in the help what an empty list stands for.
void add_device_options(CLI::App& app, DeviceFlags& flags,
                        const std::string& default_text);
/// `fallback` is used if no devices were given.
std::vector<Device> to_devices(const DeviceFlags& flags,
                               const std::string& fallback);

/// One for each rank of this host: those given, else a GPU or a slice for each.
std::vector<Device> rank_devices(const DeviceFlags& flags, const World& world);

/// One device: the first GPU, or the whole host.
std::string one_device();

}  // namespace lockstep::cli
