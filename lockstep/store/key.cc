#include "lockstep/store/key.h"

#include <string>

#include <openssl/crypto.h>
#include <openssl/err.h>
#include <openssl/evp.h>
#include <openssl/hmac.h>
#include <openssl/rand.h>

#include "lockstep/base/error.h"
#include "lockstep/store/wire.h"

namespace lockstep::store {
namespace {

template <size_t N>
std::array<uint8_t, N> random_bytes() {
  std::array<uint8_t, N> bytes{};
  if (RAND_bytes(bytes.data(), static_cast<int>(N)) != 1) {
    throw_openssl_error("no random numbers");
  }
  return bytes;
}

}  // namespace

void throw_openssl_error(const char* what) {
  std::array<char, 256> text{};
  ERR_error_string_n(ERR_peek_last_error(), text.data(), text.size());
  ERR_clear_error();
  throw CommError({.code = ErrorCode::kStoreProtocol,
                   .what = what,
                   .got = text.data(),
                   .fix = "check OpenSSL's configuration (OPENSSL_CONF)"});
}

Key Key::random() { return Key(random_bytes<sizeof(Digest)>()); }
Key::~Key() { OPENSSL_cleanse(bytes_.data(), bytes_.size()); }

Key derived(const Key& key, std::initializer_list<std::string_view> purpose) {
  FieldWriter text;
  for (const std::string_view part : purpose) text.u64(part.size()).raw(part);
  const std::string bytes = text.take();
  Digest digest{};
  unsigned int size = 0;
  if (HMAC(EVP_sha256(), key.bytes().data(),
           static_cast<int>(key.bytes().size()),
           reinterpret_cast<const unsigned char*>(bytes.data()), bytes.size(),
           digest.data(), &size) == nullptr ||
      size != digest.size()) {
    throw_openssl_error("no HMAC-SHA256");
  }
  return Key(digest);
}

Token random_token() { return random_bytes<sizeof(Token)>(); }

const Token& process_token() {
  static const Token token = random_token();
  return token;
}

}  // namespace lockstep::store
