#pragma once

#include <cstdint>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include <torch/arg.h>

#include "lockstep/device/links/link.h"

namespace lockstep {

/// Method that moves the bytes of a copy.
enum class CopyMethod {
  kCopyEngine,  ///< as training copies
  /// By a kernel on the receiving device. A check makes such copies between
  /// slices and between GPUs of NVIDIA.
  kLoadsAndStores,
};

/// Copies that a check makes over each link.
struct LinkCheckOptions {
  /// Sizes of the copies in bytes; multiples of 8.
  TORCH_ARG(std::vector<int64_t>, sizes) = {1 << 10, 1 << 20, 4 << 20, 16 << 20,
                                            64 << 20};
  /// Each round copies different numbers.
  TORCH_ARG(int, rounds) = 1;
  /// Limit for each copy.
  TORCH_ARG(double, timeout_s) = 20;
};

/// One copy of a check.
struct LinkCopy {
  Link link;
  CopyMethod method = CopyMethod::kCopyEngine;
  int64_t bytes = 0;
};

/// A copy that did not transfer its data correctly.
struct LinkFinding {
  /// Kind of error.
  enum class Kind {
    kChanged,     ///< different bytes arrived
    kNotWritten,  ///< some or all of the memory is unchanged
    kTimeout,     ///< the copy did not end
  };
  LinkCopy copy;
  Kind kind = Kind::kChanged;
  int64_t first_byte = 0;   ///< offset of the first wrong byte
  int64_t wrong_bytes = 0;  ///< bytes of all wrong 8-byte words

  /// Returns "cuda:0 -> cuda:1: a copy of 4 MiB arrived changed: ...".
  std::string text() const;
};

/// Makes one copy of a check. It writes a pattern in which all words differ to
/// memory of link.from and another value to memory of link.to, copies, and
/// reads the result from the host. Returns nullopt if the data is correct.
std::optional<LinkFinding> check_copy(const LinkCopy& copy, int round);

/// Makes all copies over `links`, one at a time, and returns the first finding
/// of each link. A separate thread of this process makes the copies. If a copy
/// hangs, that thread is left behind.
std::vector<LinkFinding> check_links(std::span<const Link> links,
                                     const LinkCheckOptions& options);

}  // namespace lockstep
