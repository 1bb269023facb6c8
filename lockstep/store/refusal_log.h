#pragma once

#include <chrono>
#include <exception>
#include <string>

namespace lockstep::store {

/// What an exception says, without the component's name before it.
std::string reason_of(const std::exception& error);

/// Says who was refused and why: a line at once, and then one every few seconds
/// at most, so that a flood of strangers does not become one of lines.
class RefusalLog {
 public:
  void add(const std::string& peer, const std::string& why);

 private:
  std::chrono::steady_clock::time_point last_{};
  size_t untold_ = 0;
};

}  // namespace lockstep::store
