#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <span>
#include <string>
#include <string_view>

namespace lockstep {

/// The 128-bit XXH3 hash of data that is added piece by piece. Runs at memory
/// speed. It detects accidental damage, not tampering; use Sha256 for that.
class Checksum {
 public:
  Checksum();
  ~Checksum();
  void add(std::span<const std::byte> bytes);
  void add(std::string_view text);
  /// Returns 32 hexadecimal digits, as `xxh128sum` prints them.
  std::string hex() const;

 private:
  struct State;
  std::unique_ptr<State> state_;
};

std::string checksum_of(std::string_view text);

/// The 64-bit FNV-1a hash (RFC 9923) of data that is added piece by piece. Fast
/// and the same on every machine. It does not protect against tampering.
class Fnv1a {
 public:
  void add(std::string_view bytes) {
    for (const char byte : bytes) add_unit(static_cast<unsigned char>(byte));
  }
  /// Adds a whole number in one step instead of byte by byte. The result
  /// differs from FNV-1a of its bytes, and costs an eighth as much.
  void add_unit(uint64_t unit) { hash_ = (hash_ ^ unit) * 1099511628211U; }
  uint64_t value() const { return hash_; }

 private:
  uint64_t hash_ = 14695981039346656037U;
};

/// The SHA-256 digest of data that is added piece by piece. After hex(),
/// neither add() nor hex() may be called.
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
