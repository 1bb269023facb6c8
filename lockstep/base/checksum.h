#pragma once

#include <cstddef>
#include <memory>
#include <span>
#include <string>
#include <string_view>

namespace lockstep {

/// XXH3 (128 bits) of what is added piece by piece: finds damage, at the speed
/// of memory. It is no proof against who means harm; Sha256 is.
class Checksum {
 public:
  Checksum();
  ~Checksum();
  void add(std::span<const std::byte> bytes);
  void add(std::string_view text);
  /// 32 digits, as `xxh128sum` prints them.
  std::string hex() const;

 private:
  struct State;
  std::unique_ptr<State> state_;
};

std::string checksum_of(std::string_view text);

}  // namespace lockstep
