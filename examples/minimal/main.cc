// Prints the devices that this machine has to train on.
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
