#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <initializer_list>
#include <memory>
#include <string_view>

namespace lockstep::store {

/// An HMAC-SHA256, or random bytes of the same size.
using Digest = std::array<uint8_t, 32>;
/// A random number that distinguishes processes of the same name.
using Token = std::array<uint8_t, 16>;

/// A key that only the two ends of a connection know. The destructor wipes it.
class Key {
 public:
  Key() = default;
  explicit Key(const Digest& bytes) : bytes_(bytes) {}
  Key(const Key&) = default;
  Key& operator=(const Key&) = default;
  ~Key();

  const Digest& bytes() const { return bytes_; }

 private:
  Digest bytes_{};
};

/// Computes authentication codes (HMAC-SHA256, RFC 2104) with one key. One
/// thread may use it at a time.
class Mac {
 public:
  explicit Mac(const Key& key);
  ~Mac();
  Mac(Mac&&) noexcept;
  Mac& operator=(Mac&&) noexcept;

  /// Returns the code of all parts with their lengths, so that {"ab", "c"} and
  /// {"a", "bc"} differ.
  Digest of(std::initializer_list<std::string_view> parts) const;

 private:
  struct Context;
  std::unique_ptr<Context> context_;
};

/// Derives a key from `key` for a purpose. The result reveals nothing about
/// `key`.
Key derived(const Key& key, std::initializer_list<std::string_view> purpose);

/// Compares two digests in constant time.
bool is_same(const Digest& a, std::string_view b);

Digest random_nonce();
Token random_token();
/// Returns the token of this process, the same in every call.
const Token& process_token();

template <size_t N>
std::string_view as_text(const std::array<uint8_t, N>& bytes) {
  return {reinterpret_cast<const char*>(bytes.data()), N};
}

}  // namespace lockstep::store
