#pragma once

#include <cstdint>
#include <string_view>

namespace lockstep {

/// The 64-bit FNV-1a hash (RFC 9923) of what is added piece by piece. Fast and
/// the same on every machine; no protection against who means harm.
class Fnv1a {
 public:
  void add(std::string_view bytes) {
    for (const char byte : bytes) add_unit(static_cast<unsigned char>(byte));
  }
  /// Adds a whole number in one step, and not byte by byte: another hash than
  /// FNV-1a of its bytes, at an eighth of the cost.
  void add_unit(uint64_t unit) { hash_ = (hash_ ^ unit) * 1099511628211U; }
  uint64_t value() const { return hash_; }

 private:
  uint64_t hash_ = 14695981039346656037U;
};

}  // namespace lockstep
