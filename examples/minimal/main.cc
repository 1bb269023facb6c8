// Prints the devices that this machine has to train on.
#include <cstdio>
#include <vector>

#include "lockstep/base/error.h"
#include "lockstep/device/device.h"

int main(int argc, char** argv) try {
  const auto devices = lockstep::devices(argc > 1 ? argv[1] : "auto");
  for (const auto& device : devices) {
    std::printf("%s", device.name().c_str());
    if (device.is_cpu()) {
      std::printf(": %zu cores", lockstep::cores_of(device).size());
    }
    std::printf("\n");
  }
} catch (const lockstep::Error& error) {
  std::fprintf(stderr, "%s\n", error.what());
  return 1;
}
