#include "lockstep/base/checksum.h"

#include <array>

#include <fmt/format.h>
#include <fmt/ranges.h>
#include <openssl/evp.h>

#include "lockstep/base/error.h"

// Compiles the functions in here, so no library has to be linked.
#define XXH_INLINE_ALL
#include <xxhash.h>

namespace lockstep {
namespace {

[[noreturn]] void refuse(const char* what) {
  throw InvalidArgument(
      "digest",
      {.code = ErrorCode::kMisuse, .what = what, .fix = "start a new one"});
}

void check(int result) {
  if (result == 1) return;
  throw InvalidArgument("digest",
                        {.code = ErrorCode::kNotInBuild,
                         .what = "OpenSSL has no SHA-256",
                         .fix = "check its configuration (OPENSSL_CONF)"});
}

}  // namespace

struct Checksum::State {
  XXH3_state_t hash;
};

Checksum::Checksum() : state_(std::make_unique<State>()) {
  XXH3_128bits_reset(&state_->hash);
}

Checksum::~Checksum() = default;

void Checksum::add(std::span<const std::byte> bytes) {
  XXH3_128bits_update(&state_->hash, bytes.data(), bytes.size());
}

void Checksum::add(std::string_view text) {
  add(std::as_bytes(std::span(text.data(), text.size())));
}

std::string Checksum::hex() const {
  const XXH128_hash_t hash = XXH3_128bits_digest(&state_->hash);
  return fmt::format("{:016x}{:016x}", hash.high64, hash.low64);
}

std::string checksum_of(std::string_view text) {
  Checksum checksum;
  checksum.add(text);
  return checksum.hex();
}

struct Sha256::State {
  State() { check(EVP_DigestInit_ex(context, EVP_sha256(), nullptr)); }
  ~State() { EVP_MD_CTX_free(context); }
  State(const State&) = delete;
  State& operator=(const State&) = delete;
  EVP_MD_CTX* context = EVP_MD_CTX_new();
};

Sha256::Sha256() : state_(std::make_unique<State>()) {}

Sha256::~Sha256() = default;

void Sha256::add(std::span<const std::byte> bytes) {
  if (!state_) refuse("add() after hex()");
  check(EVP_DigestUpdate(state_->context, bytes.data(), bytes.size()));
}

void Sha256::add(std::string_view text) {
  add(std::as_bytes(std::span(text.data(), text.size())));
}

std::string Sha256::hex() {
  if (!state_) refuse("hex() called twice");
  std::array<unsigned char, EVP_MAX_MD_SIZE> digest{};
  unsigned size = 0;
  check(EVP_DigestFinal_ex(state_->context, digest.data(), &size));
  state_.reset();
  return fmt::format("{:02x}", fmt::join(std::span(digest).first(size), ""));
}

}  // namespace lockstep
