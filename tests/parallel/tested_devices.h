#pragma once

#include <cstddef>
#include <cstdint>
#include <string>
#include <vector>

#include <c10/core/Device.h>

#include "lockstep/device/device.h"

// The devices that the shared tests of this layer train on: slices of the host
// in test_parallel and test_parallel_ddp, and simulated devices in
// test_accelerator, which compiles the same files.
namespace lockstep::tested {

struct Kind {
  c10::DeviceType type = c10::kCPU;
  /// Backends of the ranks.
  std::vector<const char*> backends{"shm", "tcp"};
};

/// Returns the devices of this program. Its main() may change them before it
/// makes the tests.
inline Kind& kind() {
  static Kind kind;
  return kind;
}

/// The devices that this thread uses: every `ranks`th one, from `rank` on.
struct Place {
  c10::DeviceType type = kind().type;
  int rank = 0;
  int ranks = 1;
};

inline Place& place_of_thread() {
  thread_local Place place;
  return place;
}

/// Returns `k` devices for the replicas of this thread. The host has as many
/// slices, on however few cores.
inline std::vector<Device> devices(int k) {
  const Place place = place_of_thread();
  if (place.type == c10::kCPU) {
    return lockstep::devices(std::to_string(k) + "xcpu", Duplicates::kRefuse,
                             Oversubscription::kAllow);
  }
  std::vector<Device> list;
  for (int i = 0; i < k; ++i) {
    list.push_back({place.type, place.rank + i * place.ranks, 0});
  }
  return list;
}

/// Returns the device of this thread's modules and data: that of its rank, or
/// the first one.
inline c10::Device home() { return torch_device(devices(1).front()); }

}  // namespace lockstep::tested
