// A shared library of a user's: exports one function, and nothing of Lockstep.
#include <lockstep/base/error.h>
#include <lockstep/device/device.h>

extern "C" __attribute__((visibility("default"))) int count_of_devices() try {
  return static_cast<int>(lockstep::devices("2xcpu").size());
} catch (const lockstep::Error&) {
  return -1;
}
