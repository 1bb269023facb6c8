#pragma once

#include <atomic>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <vector>

#include <gtest/gtest.h>

#include "lockstep/device/links/links.h"
#include "tests/accelerator/sim/accelerator.h"

// A link between simulated devices whose peer copies arrive changed.
namespace lockstep::sim::links {

inline Device device(int index) { return {kSim, index, 0}; }

inline std::vector<Device> first_devices(int count) {
  std::vector<Device> list;
  for (int i = 0; i < count; ++i) list.push_back(device(i));
  return list;
}

/// Adds to the exponent of one float in every 128 bytes: it becomes 2^14 times
/// as large.
inline void enlarge_some(std::byte* bytes, size_t size) {
  constexpr size_t kEvery = 128;
  constexpr uint8_t kAdded = 7;
  for (size_t i = 0; i + kEvery <= size; i += kEvery) {
    const auto byte = std::to_integer<uint8_t>(bytes[i + 3]);
    bytes[i + 3] = static_cast<std::byte>(byte + kAdded);
  }
}

/// A link over which copies of at least `least_bytes` arrive changed.
struct BrokenLink {
  int from = 1;
  int to = 0;
  size_t least_bytes = 0;
  int64_t one_of = 1;  ///< only each n-th copy is changed
};

/// Numbers of copies between devices.
struct Copies {
  std::atomic<int64_t> broken{0};  ///< over the broken link, and large enough
  std::atomic<int64_t> good{0};    ///< all others
};

/// Breaks `link` and no other. Returns the copies, which are counted from now.
inline std::shared_ptr<Copies> break_link(const BrokenLink& link) {
  auto copies = std::make_shared<Copies>();
  Faults faults;
  faults.corrupt_copy = [link, copies](int from, int to, std::byte* bytes,
                                       size_t size) {
    if (from != link.from || to != link.to || size < link.least_bytes) {
      ++copies->good;
    } else if (++copies->broken % link.one_of == 0) {
      enlarge_some(bytes, size);
    }
  };
  set_faults(faults);
  return copies;
}

class LinksOnAccelerator : public testing::Test {
 protected:
  LinksOnAccelerator() { restore(); }
  ~LinksOnAccelerator() override { restore(); }
  static void restore() {
    set_faults({});
    forget_copy_paths();
  }

 private:
};

}  // namespace lockstep::sim::links
