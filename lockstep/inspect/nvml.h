#pragma once

#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "lockstep/inspect/topology.h"

namespace lockstep::inspect {

/// The part of NVIDIA's management library that a topology needs. The library
/// comes with the driver, so it is opened at run time.
class Nvml {
 public:
  /// Opens the library. Returns nothing if there is no such library or no
  /// driver.
  static std::optional<Nvml> open(
      const std::string& library = "libnvidia-ml.so.1");

  /// Returns the UUIDs of all GPUs in the order of NVML, which differs from
  /// that of CUDA.
  std::vector<std::string> uuids() const;
  /// Returns the topology of the GPUs with these UUIDs, in this order, named
  /// GPU0, GPU1 and so on. Throws DeviceError if there is no such GPU. `root`
  /// is the folder that contains /sys.
  Topology topology(const std::vector<std::string>& uuids,
                    const std::string& root = "/") const;

 private:
  class Library;
  explicit Nvml(std::shared_ptr<const Library> library)
      : library_(std::move(library)) {}

  std::shared_ptr<const Library> library_;
};

}  // namespace lockstep::inspect
