#pragma once

#include <chrono>

namespace gloo {

/// Declared because an inline function of c10d, which is not called here, sets
/// its timeout.
class Context {
 public:
  void setTimeout(std::chrono::milliseconds timeout);
};

}  // namespace gloo
