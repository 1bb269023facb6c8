#include "lockstep/tcp/tls.h"

#include <algorithm>
#include <array>
#include <poll.h>
#include <string>
#include <utility>

#include <fmt/format.h>
#include <openssl/err.h>
#include <openssl/ssl.h>

#include "lockstep/base/blocked_sigpipe.h"
#include "lockstep/base/env.h"
#include "lockstep/base/error.h"
#include "lockstep/store/socket_address.h"

namespace lockstep::tcp {
namespace {

/// Returns OpenSSL's last error in this thread, and clears all its errors.
std::string last_error() {
  std::array<char, 256> text{};
  ERR_error_string_n(ERR_peek_last_error(), text.data(), text.size());
  ERR_clear_error();
  return text.data();
}

std::string file_of(const char* variable) {
  if (auto path = env(variable)) return *path;
  throw InvalidArgument(
      "comm", {.code = ErrorCode::kBadVariable,
               .what = fmt::format("{} is not set", variable),
               .expected = "a file in PEM form, as GLOO_DEVICE_TRANSPORT is "
                           "TCP_TLS"});
}

void check(int result, const char* variable, const std::string& path) {
  if (result == 1) return;
  throw InvalidArgument(
      "comm", {.code = ErrorCode::kBadVariable,
               .what = fmt::format("{} names a file that can't be used: {}",
                                   variable, path),
               .expected = "a file in PEM form, which fits to the others",
               .got = last_error()});
}

}  // namespace

bool wait_for(int fd, short events,
              std::chrono::steady_clock::time_point deadline,
              const std::function<bool()>& is_over) {
  for (;;) {
    pollfd polled{.fd = fd, .events = events, .revents = 0};
    const int wait_ms = std::min(store::poll_timeout_ms(deadline),
                                 static_cast<int>(kAskEvery.count()));
    if (::poll(&polled, 1, wait_ms) > 0) return true;
    if (std::chrono::steady_clock::now() >= deadline || is_over()) return false;
  }
}

Tls::Tls(Context context) : context_(std::move(context)) {}

std::shared_ptr<const Tls> Tls::from_environment() {
  if (env("GLOO_DEVICE_TRANSPORT") != "TCP_TLS") return nullptr;
  constexpr const char* kCertificate = "GLOO_DEVICE_TRANSPORT_TCP_TLS_CERT";
  constexpr const char* kKey = "GLOO_DEVICE_TRANSPORT_TCP_TLS_PKEY";
  constexpr const char* kAuthority = "GLOO_DEVICE_TRANSPORT_TCP_TLS_CA_FILE";
  const std::string certificate = file_of(kCertificate), key = file_of(kKey),
                    authority = file_of(kAuthority);
  Context context(SSL_CTX_new(TLS_method()), &SSL_CTX_free);
  if (!context) {
    throw CommError({.code = ErrorCode::kNotInBuild,
                     .what = "OpenSSL can't be used",
                     .got = last_error()});
  }
  SSL_CTX* const raw = context.get();
  SSL_CTX_set_min_proto_version(raw, TLS1_3_VERSION);
  SSL_CTX_set_verify(raw, SSL_VERIFY_PEER | SSL_VERIFY_FAIL_IF_NO_PEER_CERT,
                     nullptr);
  // No tickets, because a connection is never resumed after it was closed.
  SSL_CTX_set_num_tickets(raw, 0);
  SSL_CTX_set_mode(
      raw, SSL_MODE_ENABLE_PARTIAL_WRITE | SSL_MODE_ACCEPT_MOVING_WRITE_BUFFER);
  check(SSL_CTX_use_certificate_chain_file(raw, certificate.c_str()),
        kCertificate, certificate);
  check(SSL_CTX_use_PrivateKey_file(raw, key.c_str(), SSL_FILETYPE_PEM), kKey,
        key);
  check(SSL_CTX_check_private_key(raw), kKey, key);
  check(SSL_CTX_load_verify_locations(raw, authority.c_str(), nullptr),
        kAuthority, authority);
  return std::shared_ptr<const Tls>(new Tls(std::move(context)));
}

Ssl Tls::shake_hands(int fd, bool is_server, Time deadline,
                     const std::function<bool()>& is_over) const {
  const BlockedSigpipe blocked;
  Ssl ssl(SSL_new(context_.get()), &SSL_free);
  const auto fail = [&](const std::string& got) {
    throw CommError(
        {.code = ErrorCode::kRanksNotConnected,
         .what = "the TLS handshake with another rank failed",
         .expected = "a certificate of the authority that "
                     "GLOO_DEVICE_TRANSPORT_TCP_TLS_CA_FILE names",
         .got = got,
         .fix = "give every rank a certificate of the same authority"});
  };
  if (!ssl || SSL_set_fd(ssl.get(), fd) != 1) fail(last_error());
  for (;;) {
    ERR_clear_error();
    const int result =
        is_server ? SSL_accept(ssl.get()) : SSL_connect(ssl.get());
    if (result == 1) return ssl;
    const int error = SSL_get_error(ssl.get(), result);
    if (error != SSL_ERROR_WANT_READ && error != SSL_ERROR_WANT_WRITE) {
      fail(ERR_peek_last_error() != 0 ? last_error()
                                      : "the connection was closed");
    }
    const short events = error == SSL_ERROR_WANT_READ ? POLLIN : POLLOUT;
    if (!wait_for(fd, events, deadline, is_over)) fail("nothing in time");
  }
}

}  // namespace lockstep::tcp
