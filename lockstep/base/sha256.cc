#include "lockstep/base/sha256.h"

#include <array>

#include <sodium.h>

#include "lockstep/base/error.h"

namespace lockstep {

struct Sha256::State {
  crypto_hash_sha256_state hash;
};

Sha256::Sha256() : state_(std::make_unique<State>()) {
  crypto_hash_sha256_init(&state_->hash);
}

Sha256::~Sha256() = default;

void Sha256::add(std::span<const std::byte> bytes) {
  if (!state_) {
    throw InvalidArgument(
        "sha256", {.what = "add() after hex()", .fix = "start a new Sha256"});
  }
  crypto_hash_sha256_update(
      &state_->hash, reinterpret_cast<const unsigned char*>(bytes.data()),
      bytes.size());
}

void Sha256::add(std::string_view text) {
  add(std::as_bytes(std::span(text.data(), text.size())));
}

std::string Sha256::hex() {
  if (!state_) {
    throw InvalidArgument(
        "sha256", {.what = "hex() called twice", .fix = "start a new Sha256"});
  }
  std::array<unsigned char, crypto_hash_sha256_BYTES> digest{};
  crypto_hash_sha256_final(&state_->hash, digest.data());
  state_.reset();
  std::array<char, 2 * crypto_hash_sha256_BYTES + 1> text{};
  sodium_bin2hex(text.data(), text.size(), digest.data(), digest.size());
  return text.data();
}

}  // namespace lockstep
