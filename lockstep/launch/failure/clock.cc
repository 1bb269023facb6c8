#include "lockstep/launch/failure/clock.h"

#include <array>
#include <chrono>
#include <ctime>

#include <fmt/format.h>

namespace lockstep::launch {

double unix_time_s() {
  return std::chrono::duration<double>(
             std::chrono::system_clock::now().time_since_epoch())
      .count();
}

Moment Moment::now() {
  const auto steady = std::chrono::steady_clock::now().time_since_epoch();
  return {.steady_s = std::chrono::duration<double>(steady).count(),
          .unix_s = unix_time_s()};
}

std::string local_time(double time_s) {
  const auto seconds = static_cast<std::time_t>(time_s);
  std::tm parts{};
  ::localtime_r(&seconds, &parts);
  std::array<char, 32> text{};
  std::strftime(text.data(), text.size(), "%Y-%m-%d %H:%M:%S", &parts);
  const int milliseconds =
      static_cast<int>((time_s - static_cast<double>(seconds)) * 1000);
  return fmt::format("{}.{:03}", text.data(), milliseconds);
}

}  // namespace lockstep::launch
