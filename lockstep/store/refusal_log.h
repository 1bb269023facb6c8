#pragma once

#include <chrono>
#include <string>

namespace lockstep::store {

/// Logs which clients were refused and why. Writes the first line at once and
/// then at most one line in ten seconds, so that a flood of connections does
/// not flood the log.
class RefusalLog {
 public:
  void add(const std::string& peer, const std::string& why);

 private:
  std::chrono::steady_clock::time_point last_{};
  size_t untold_ = 0;
};

}  // namespace lockstep::store
