#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <initializer_list>
#include <memory>
#include <string>
#include <string_view>

namespace lockstep::store {

/// An HMAC-SHA256, or as many random bytes.
using Digest = std::array<uint8_t, 32>;
/// Of a process, made at random: it tells two of the same name apart.
using Token = std::array<uint8_t, 16>;

/// What both ends know and nobody else. Wiped when it goes.
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

/// Makes authentication codes (HMAC-SHA256, RFC 2104) with one key. Not for
/// several threads at once.
class Mac {
 public:
  explicit Mac(const Key& key);
  ~Mac();
  Mac(Mac&&) noexcept;
  Mac& operator=(Mac&&) noexcept;

  /// Of the parts with their lengths: "ab", "c" is not "a", "bc".
  Digest of(std::initializer_list<std::string_view> parts) const;

 private:
  struct Context;
  std::unique_ptr<Context> context_;
};

/// The key that follows from `key` for a purpose, and tells nothing of it.
Key derived(const Key& key, std::initializer_list<std::string_view> purpose);

/// Takes the same time wherever the two differ.
bool is_same(const Digest& a, std::string_view b);

Digest random_nonce();
/// This process's, the same in every call.
const Token& process_token();

template <size_t N>
std::string_view as_text(const std::array<uint8_t, N>& bytes) {
  return {reinterpret_cast<const char*>(bytes.data()), N};
}

}  // namespace lockstep::store
