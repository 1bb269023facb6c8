#pragma once

#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "lockstep/inspect/topology.h"

namespace lockstep::inspect {

/// NVIDIA's management library, as far as a topology needs it. It comes with
/// the driver, so it is opened at run time.
class Nvml {
 public:
  /// Nothing where there is no such library, or no driver.
  static std::optional<Nvml> open(
      const std::string& library = "libnvidia-ml.so.1");

  /// The UUIDs of all GPUs, by NVML's numbers, which are not CUDA's.
  std::vector<std::string> uuids() const;
  /// GPUs with these UUIDs, in this order, called GPU0, GPU1, ...; throws
  /// DeviceError for one that there is not. `root` is where /sys is found.
  Topology topology(const std::vector<std::string>& uuids,
                    const std::string& root = "/") const;

 private:
  class Library;
  explicit Nvml(std::shared_ptr<const Library> library)
      : library_(std::move(library)) {}

  std::shared_ptr<const Library> library_;
};

}  // namespace lockstep::inspect
