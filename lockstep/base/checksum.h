#pragma once

#include <cstddef>
#include <cstdint>
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

/// A digest of OpenSSL's, of what is added piece by piece. hex() ends it.
class Digest {
 public:
  ~Digest();
  void add(std::span<const std::byte> bytes);
  void add(std::string_view text);
  std::string hex();

 protected:
  /// `name` as OpenSSL has it.
  explicit Digest(const char* name);

 private:
  struct State;
  std::unique_ptr<State> state_;
};

class Sha256 : public Digest {
 public:
  Sha256() : Digest("SHA256") {}
};

/// For checksums that others have published. A file that was damaged has
/// another one, and nobody knows how to make a file to a given one; but two
/// files of the same can be made.
class Md5 : public Digest {
 public:
  Md5() : Digest("MD5") {}
};

}  // namespace lockstep
