#include "lockstep/store/key.h"

#include <openssl/core_names.h>
#include <openssl/crypto.h>
#include <openssl/evp.h>
#include <openssl/params.h>
#include <openssl/rand.h>

#include "lockstep/base/error.h"

namespace lockstep::store {
namespace {

[[noreturn]] void throw_openssl_error(const char* what) {
  throw CommError({.code = ErrorCode::kStoreProtocol,
                   .what = what,
                   .got = "a failure of OpenSSL",
                   .fix = "check its configuration (OPENSSL_CONF)"});
}

// Returns OpenSSL's HMAC. It is fetched only once, because that takes longer
// than computing a code.
EVP_MAC* algorithm() {
  static EVP_MAC* const mac = EVP_MAC_fetch(nullptr, "HMAC", nullptr);
  if (mac == nullptr) throw_openssl_error("no HMAC-SHA256");
  return mac;
}

template <size_t N>
std::array<uint8_t, N> random_bytes() {
  std::array<uint8_t, N> bytes{};
  if (RAND_bytes(bytes.data(), static_cast<int>(N)) != 1) {
    throw_openssl_error("no random numbers");
  }
  return bytes;
}

}  // namespace

Key::~Key() { OPENSSL_cleanse(bytes_.data(), bytes_.size()); }

struct Mac::Context {
  Context() : context(EVP_MAC_CTX_new(algorithm())) {}
  ~Context() { EVP_MAC_CTX_free(context); }
  Context(const Context&) = delete;
  Context& operator=(const Context&) = delete;
  EVP_MAC_CTX* context;
};

Mac::Mac(const Key& key) : context_(std::make_unique<Context>()) {
  std::string digest = "SHA256";
  const std::array<OSSL_PARAM, 2> parameters{
      OSSL_PARAM_construct_utf8_string(OSSL_MAC_PARAM_DIGEST, digest.data(), 0),
      OSSL_PARAM_construct_end()};
  if (context_->context == nullptr ||
      EVP_MAC_init(context_->context, key.bytes().data(), key.bytes().size(),
                   parameters.data()) != 1) {
    throw_openssl_error("no HMAC-SHA256");
  }
}

Mac::~Mac() = default;
Mac::Mac(Mac&&) noexcept = default;
Mac& Mac::operator=(Mac&&) noexcept = default;

Digest Mac::of(std::initializer_list<std::string_view> parts) const {
  EVP_MAC_CTX* context = context_->context;
  // Without a key argument, OpenSSL starts again with the same key.
  bool is_good = EVP_MAC_init(context, nullptr, 0, nullptr) == 1;
  for (const std::string_view part : parts) {
    std::array<uint8_t, 8> length{};
    for (size_t i = 0; i < length.size(); ++i) {
      length[i] = static_cast<uint8_t>(part.size() >> (8 * i));
    }
    is_good =
        is_good && EVP_MAC_update(context, length.data(), length.size()) == 1 &&
        EVP_MAC_update(context,
                       reinterpret_cast<const unsigned char*>(part.data()),
                       part.size()) == 1;
  }
  Digest digest{};
  size_t size = 0;
  is_good = is_good &&
            EVP_MAC_final(context, digest.data(), &size, digest.size()) == 1;
  if (!is_good || size != digest.size()) throw_openssl_error("no HMAC-SHA256");
  return digest;
}

Key derived(const Key& key, std::initializer_list<std::string_view> purpose) {
  return Key(Mac(key).of(purpose));
}

bool is_same(const Digest& a, std::string_view b) {
  return b.size() == a.size() &&
         CRYPTO_memcmp(a.data(), b.data(), a.size()) == 0;
}

Digest random_nonce() { return random_bytes<32>(); }

Token random_token() { return random_bytes<16>(); }

const Token& process_token() {
  static const Token token = random_token();
  return token;
}

}  // namespace lockstep::store
