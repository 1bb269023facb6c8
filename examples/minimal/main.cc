// Prints the devices of this machine that can be used for training.
#include <cstdio>
#include <vector>

#include "../arguments.h"
#include "lockstep/device/device.h"

int main(int argc, char** argv) try {
  Arguments arguments(argc, argv, "DEVICES");
  for (const auto& device : arguments.devices()) {
    std::printf("%s", device.name().c_str());
    if (device.is_cpu()) {
      std::printf(": %zu cores", lockstep::cores_of(device).size());
    }
    std::printf("\n");
  }
} catch (const std::exception& error) {
  return end_with(error);
}
