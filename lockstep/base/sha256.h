#pragma once

#include <cstddef>
#include <memory>
#include <span>
#include <string>
#include <string_view>

namespace lockstep {

/// SHA-256 of what is added piece by piece. hex() ends it.
class Sha256 {
 public:
  Sha256();
  ~Sha256();
  void add(std::span<const std::byte> bytes);
  void add(std::string_view text);
  std::string hex();

 private:
  struct State;
  std::unique_ptr<State> state_;
};

}  // namespace lockstep
