#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <initializer_list>
#include <string_view>

namespace lockstep::store {

/// An HMAC-SHA256.
using Digest = std::array<uint8_t, 32>;
/// A random number that distinguishes processes of the same name.
using Token = std::array<uint8_t, 16>;

/// A key that only the two ends of a connection know. The destructor wipes it.
class Key {
 public:
  Key() = default;
  explicit Key(const Digest& bytes) : bytes_(bytes) {}
  static Key random();
  Key(const Key&) = default;
  Key& operator=(const Key&) = default;
  ~Key();

  const Digest& bytes() const { return bytes_; }

 private:
  Digest bytes_{};
};

/// Derives a key from `key` for a purpose: an HMAC-SHA256 (RFC 2104) of all its
/// parts with their lengths, so that {"ab", "c"} and {"a", "bc"} differ. The
/// result reveals nothing about `key`.
Key derived(const Key& key, std::initializer_list<std::string_view> purpose);

Token random_token();
/// Returns the token of this process, the same in every call.
const Token& process_token();

/// Throws CommError with OpenSSL's last error in this thread.
[[noreturn]] void throw_openssl_error(const char* what);

template <size_t N>
std::string_view as_text(const std::array<uint8_t, N>& bytes) {
  return {reinterpret_cast<const char*>(bytes.data()), N};
}

}  // namespace lockstep::store
