#include "lockstep/store/secure_socket.h"

#include <algorithm>
#include <array>
#include <cerrno>
#include <cstdint>
#include <limits>
#include <sys/socket.h>
#include <sys/types.h>
#include <utility>

#include <openssl/bio.h>
#include <openssl/err.h>
#include <openssl/ssl.h>

namespace lockstep::store {
namespace {

using Outcome = SecureSocket::Outcome;

// Limit on the bytes read during a handshake. A client sends the name of its
// key and about 300 bytes.
constexpr size_t kMaxHandshakeBytes = 4096;
// TLS_AES_128_GCM_SHA256: its number in the protocol, and its name.
constexpr std::array<unsigned char, 2> kCipher{0x13, 0x01};
constexpr const char* kCipherName = "TLS_AES_128_GCM_SHA256";

}  // namespace

bool is_transient(int error) {
  return error == EAGAIN || error == EWOULDBLOCK || error == EINTR ||
         error == ENOBUFS;
}

struct SecureSocket::Tls {
  Tls(const FileDescriptor& socket, SSL_CTX* context)
      : fd(socket.get()), ssl(SSL_new(context)) {
    BIO* const bio = BIO_new(method());
    if (ssl == nullptr || bio == nullptr) {
      SSL_free(ssl);
      BIO_free(bio);
      throw_openssl_error("no TLS connection can be made");
    }
    BIO_set_data(bio, this);
    BIO_set_init(bio, 1);
    SSL_set_bio(ssl, bio, bio);
    SSL_set_app_data(ssl, this);
  }
  ~Tls() { SSL_free(ssl); }
  Tls(const Tls&) = delete;
  Tls& operator=(const Tls&) = delete;

  static SSL_CTX* context(bool is_server);

  // OpenSSL's own BIO for sockets would raise SIGPIPE when the other end is
  // gone, and reads as much as a stranger sends.
  static BIO_METHOD* method();
  static int read(BIO* bio, char* bytes, int size);
  static int write(BIO* bio, const char* bytes, int size);
  static long control(BIO*, int command, long, void*) {
    return command == BIO_CTRL_FLUSH ? 1 : 0;
  }

  static int use_key(SSL* ssl, const EVP_MD* hash, const unsigned char** name,
                     size_t* size, SSL_SESSION** session);
  static int find_key(SSL* ssl, const unsigned char* name, size_t size,
                      SSL_SESSION** session);

  int fd;
  SSL* ssl;
  size_t may_read = kMaxHandshakeBytes;
  std::string name;
  Key key;       // of a client
  FindKey find;  // of a server
};

namespace {

// Returns `key` as a session of TLS 1.3, or null.
SSL_SESSION* session_of(SSL* ssl, const Key& key) {
  SSL_SESSION* const session = SSL_SESSION_new();
  if (session == nullptr) return nullptr;
  const SSL_CIPHER* const cipher = SSL_CIPHER_find(ssl, kCipher.data());
  if (cipher != nullptr &&
      SSL_SESSION_set1_master_key(session, key.bytes().data(),
                                  key.bytes().size()) == 1 &&
      SSL_SESSION_set_cipher(session, cipher) == 1 &&
      SSL_SESSION_set_protocol_version(session, TLS1_3_VERSION) == 1) {
    return session;
  }
  SSL_SESSION_free(session);
  return nullptr;
}

}  // namespace

// One context for all clients of the process, and one for all servers. They
// are never freed, because threads may use them until the process ends.
SSL_CTX* SecureSocket::Tls::context(bool is_server) {
  const auto make = [](const SSL_METHOD* method) {
    SSL_CTX* const made = SSL_CTX_new(method);
    if (made == nullptr ||
        SSL_CTX_set_min_proto_version(made, TLS1_3_VERSION) != 1 ||
        SSL_CTX_set_ciphersuites(made, kCipherName) != 1 ||
        SSL_CTX_set1_groups_list(made, "X25519:P-256") != 1 ||
        // A ticket would arrive after the handshake. No connection is resumed.
        SSL_CTX_set_num_tickets(made, 0) != 1) {
      throw_openssl_error("TLS 1.3 can't be used");
    }
    SSL_CTX_set_session_cache_mode(made, SSL_SESS_CACHE_OFF);
    SSL_CTX_clear_options(made, SSL_OP_ENABLE_MIDDLEBOX_COMPAT);
    SSL_CTX_set_mode(made, SSL_MODE_ENABLE_PARTIAL_WRITE |
                               SSL_MODE_ACCEPT_MOVING_WRITE_BUFFER |
                               SSL_MODE_RELEASE_BUFFERS);
    return made;
  };
  if (is_server) {
    static SSL_CTX* const server = [&] {
      SSL_CTX* const made = make(TLS_server_method());
      SSL_CTX_set_psk_find_session_callback(made, &Tls::find_key);
      return made;
    }();
    return server;
  }
  static SSL_CTX* const client = [&] {
    SSL_CTX* const made = make(TLS_client_method());
    SSL_CTX_set_psk_use_session_callback(made, &Tls::use_key);
    // No authority is trusted, so a server can't show a certificate instead of
    // proving the key.
    SSL_CTX_set_verify(made, SSL_VERIFY_PEER, nullptr);
    return made;
  }();
  return client;
}

BIO_METHOD* SecureSocket::Tls::method() {
  static BIO_METHOD* const made = [] {
    BIO_METHOD* const method = BIO_meth_new(
        BIO_get_new_index() | BIO_TYPE_SOURCE_SINK, "lockstep socket");
    if (method == nullptr || BIO_meth_set_read(method, &Tls::read) != 1 ||
        BIO_meth_set_write(method, &Tls::write) != 1 ||
        BIO_meth_set_ctrl(method, &Tls::control) != 1) {
      throw_openssl_error("OpenSSL takes no kind of connection");
    }
    return method;
  }();
  return made;
}

int SecureSocket::Tls::read(BIO* bio, char* bytes, int size) {
  auto& self = *static_cast<Tls*>(BIO_get_data(bio));
  BIO_clear_retry_flags(bio);
  const size_t most = std::min(static_cast<size_t>(size), self.may_read);
  if (most == 0) return -1;
  const ssize_t got = ::recv(self.fd, bytes, most, MSG_DONTWAIT);
  if (got < 0 && is_transient(errno)) BIO_set_retry_read(bio);
  if (got > 0 && self.may_read <= kMaxHandshakeBytes) {
    self.may_read -= static_cast<size_t>(got);
  }
  return static_cast<int>(got);
}

int SecureSocket::Tls::write(BIO* bio, const char* bytes, int size) {
  const auto& self = *static_cast<Tls*>(BIO_get_data(bio));
  BIO_clear_retry_flags(bio);
  const ssize_t put = ::send(self.fd, bytes, static_cast<size_t>(size),
                             MSG_NOSIGNAL | MSG_DONTWAIT);
  if (put < 0 && is_transient(errno)) BIO_set_retry_write(bio);
  return static_cast<int>(put);
}

int SecureSocket::Tls::use_key(SSL* ssl, const EVP_MD* /*hash*/,
                               const unsigned char** name, size_t* size,
                               SSL_SESSION** session) {
  const auto& self = *static_cast<Tls*>(SSL_get_app_data(ssl));
  *name = reinterpret_cast<const unsigned char*>(self.name.data());
  *size = self.name.size();
  *session = session_of(ssl, self.key);
  return *session == nullptr ? 0 : 1;
}

int SecureSocket::Tls::find_key(SSL* ssl, const unsigned char* name,
                                size_t size, SSL_SESSION** session) {
  auto& self = *static_cast<Tls*>(SSL_get_app_data(ssl));
  *session = nullptr;
  try {
    self.name.assign(reinterpret_cast<const char*>(name), size);
    const auto key = self.find(self.name);
    if (!key) return 1;
    *session = session_of(ssl, *key);
    return *session == nullptr ? 0 : 1;
  } catch (const std::exception&) {
    return 0;  // an exception can't pass through OpenSSL
  }
}

SecureSocket::SecureSocket() = default;
SecureSocket::SecureSocket(FileDescriptor plain) : socket_(std::move(plain)) {}
SecureSocket::SecureSocket(SecureSocket&&) noexcept = default;
SecureSocket& SecureSocket::operator=(SecureSocket&&) noexcept = default;
SecureSocket::~SecureSocket() = default;

SecureSocket SecureSocket::client(FileDescriptor socket, std::string key_name,
                                  const Key& key) {
  SecureSocket made(std::move(socket));
  made.tls_ = std::make_unique<Tls>(made.socket_, Tls::context(false));
  made.tls_->name = std::move(key_name);
  made.tls_->key = key;
  SSL_set_connect_state(made.tls_->ssl);
  return made;
}

SecureSocket SecureSocket::server(FileDescriptor socket, FindKey find_key) {
  SecureSocket made(std::move(socket));
  made.tls_ = std::make_unique<Tls>(made.socket_, Tls::context(true));
  made.tls_->find = std::move(find_key);
  SSL_set_accept_state(made.tls_->ssl);
  return made;
}

const std::string& SecureSocket::key_name() const { return tls_->name; }

Outcome SecureSocket::outcome_of(int result) const {
  switch (SSL_get_error(tls_->ssl, result)) {
    case SSL_ERROR_NONE:
      return Outcome::kDone;
    case SSL_ERROR_WANT_READ:
      return Outcome::kWantsRead;
    case SSL_ERROR_WANT_WRITE:
      return Outcome::kWantsWrite;
    case SSL_ERROR_SSL:
      return Outcome::kRefused;
    default:
      return tls_->may_read == 0 ? Outcome::kRefused : Outcome::kClosed;
  }
}

Outcome SecureSocket::shake_hands() {
  ERR_clear_error();
  const int result = SSL_do_handshake(tls_->ssl);
  if (result != 1) return outcome_of(result);
  // OpenSSL treats a key that both ends know like a session that is resumed.
  if (SSL_session_reused(tls_->ssl) != 1) return Outcome::kRefused;
  tls_->may_read = std::numeric_limits<size_t>::max();
  return Outcome::kDone;
}

Outcome SecureSocket::read(std::span<std::byte> bytes, size_t& got) {
  if (!is_encrypted()) {
    const ssize_t count =
        ::recv(fd(), bytes.data(), bytes.size(), MSG_DONTWAIT);
    if (count < 0 && is_transient(errno)) return Outcome::kWantsRead;
    if (count <= 0) return Outcome::kClosed;
    got = static_cast<size_t>(count);
    return Outcome::kDone;
  }
  ERR_clear_error();
  return outcome_of(SSL_read_ex(tls_->ssl, bytes.data(), bytes.size(), &got));
}

Outcome SecureSocket::write(std::span<const std::byte> bytes, size_t& put) {
  if (!is_encrypted()) {
    const ssize_t count =
        ::send(fd(), bytes.data(), bytes.size(), MSG_NOSIGNAL | MSG_DONTWAIT);
    if (count < 0 && is_transient(errno)) return Outcome::kWantsWrite;
    if (count < 0) return Outcome::kClosed;
    put = static_cast<size_t>(count);
    return Outcome::kDone;
  }
  ERR_clear_error();
  return outcome_of(SSL_write_ex(tls_->ssl, bytes.data(), bytes.size(), &put));
}

Outcome SecureSocket::leave_tls() {
  ERR_clear_error();
  int result = SSL_shutdown(tls_->ssl);
  // 0: this end has said so, and the other end has not yet.
  if (result == 0) result = SSL_shutdown(tls_->ssl);
  if (result != 1) return outcome_of(result);
  tls_.reset();
  return Outcome::kDone;
}

}  // namespace lockstep::store
