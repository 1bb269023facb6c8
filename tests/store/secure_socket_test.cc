#include "lockstep/store/secure_socket.h"

#include <array>
#include <functional>
#include <sys/socket.h>
#include <vector>

#include <gtest/gtest.h>
#include <openssl/ssl.h>
#include <openssl/x509.h>

namespace lockstep::store {
namespace {

using Outcome = SecureSocket::Outcome;

struct Ends {
  FileDescriptor client, server;
};

Ends socket_pair() {
  std::array<int, 2> ends{};
  EXPECT_EQ(::socketpair(AF_UNIX, SOCK_STREAM | SOCK_NONBLOCK | SOCK_CLOEXEC, 0,
                         ends.data()),
            0);
  return {FileDescriptor(ends[0]), FileDescriptor(ends[1])};
}

bool has_ended(Outcome outcome) {
  return outcome != Outcome::kWantsRead && outcome != Outcome::kWantsWrite;
}

using Act = std::function<Outcome()>;

/// Repeats both, in turns, until they end or nothing more can happen.
std::array<Outcome, 2> in_turns(const Act& first, const Act& second) {
  std::array<Outcome, 2> both{Outcome::kWantsRead, Outcome::kWantsRead};
  for (int turn = 0; turn < 20; ++turn) {
    if (!has_ended(both[0])) both[0] = first();
    if (!has_ended(both[1])) both[1] = second();
  }
  return both;
}

constexpr std::array<Outcome, 2> kBothDone{Outcome::kDone, Outcome::kDone};

std::array<Outcome, 2> shake_hands(SecureSocket& a, SecureSocket& b) {
  return in_turns([&] { return a.shake_hands(); },
                  [&] { return b.shake_hands(); });
}

const Key kKey = Key::random();

SecureSocket::FindKey only(const std::string& name, const Key& key = kKey) {
  return [=](std::string_view asked) {
    return asked == name ? std::optional(key) : std::nullopt;
  };
}

/// The two ends of a connection, after the handshake.
struct Proven {
  Proven() {
    auto sockets = socket_pair();
    client = SecureSocket::client(std::move(sockets.client), "rank 1", kKey);
    server = SecureSocket::server(std::move(sockets.server), only("rank 1"));
    EXPECT_EQ(shake_hands(client, server), kBothDone);
  }
  SecureSocket client, server;
};

std::span<const std::byte> bytes_of(const std::string& text) {
  return std::as_bytes(std::span(text));
}

/// Sends `text` over one end and returns what arrives at the other.
std::string passed(SecureSocket& from, SecureSocket& to,
                   const std::string& text) {
  std::string got;
  auto rest = bytes_of(text);
  while (got.size() < text.size()) {
    size_t put = 0;
    if (!rest.empty()) {
      const Outcome outcome = from.write(rest, put);
      if (outcome == Outcome::kDone) rest = rest.subspan(put);
      if (outcome != Outcome::kDone && outcome != Outcome::kWantsWrite) break;
    }
    std::array<std::byte, 5000> buffer;
    size_t count = 0;
    const Outcome outcome = to.read(buffer, count);
    if (outcome == Outcome::kDone) {
      got.append(reinterpret_cast<const char*>(buffer.data()), count);
    } else if (outcome != Outcome::kWantsRead) {
      break;
    }
  }
  return got;
}

/// Reads all bytes that have arrived at a plain socket.
std::string arrived(int fd) {
  std::array<char, 65536> buffer;
  const ssize_t got = ::recv(fd, buffer.data(), buffer.size(), MSG_DONTWAIT);
  return {buffer.data(), static_cast<size_t>(std::max<ssize_t>(got, 0))};
}

void put(int fd, const std::string& bytes) {
  EXPECT_EQ(::send(fd, bytes.data(), bytes.size(), MSG_NOSIGNAL),
            static_cast<ssize_t>(bytes.size()));
}

TEST(SecureSocket, ProvesBothEndsAndPassesBytesBothWays) {
  Proven ends;
  EXPECT_EQ(ends.server.key_name(), "rank 1");
  EXPECT_TRUE(ends.client.is_encrypted());
  const std::string large(1'000'000, 'x');
  for (const std::string& text : {std::string("a"), large}) {
    EXPECT_EQ(passed(ends.client, ends.server, text), text);
    EXPECT_EQ(passed(ends.server, ends.client, text), text);
  }
}

TEST(SecureSocket, EncryptsWhatItPasses) {
  Proven ends;
  size_t count = 0;
  ASSERT_EQ(ends.client.write(bytes_of("ten coins"), count), Outcome::kDone);
  const std::string wire = arrived(ends.server.fd());
  EXPECT_GT(wire.size(), count);
  EXPECT_EQ(wire.find("coins"), std::string::npos);
}

TEST(SecureSocket, PassesPlainBytesAfterLeavingTls) {
  Proven ends;
  // The client has left and sends, before the server has read that it left.
  EXPECT_EQ(ends.server.leave_tls(), Outcome::kWantsRead);
  EXPECT_EQ(ends.client.leave_tls(), Outcome::kDone);
  EXPECT_FALSE(ends.client.is_encrypted());
  size_t count = 0;
  ASSERT_EQ(ends.client.write(bytes_of("ten coins"), count), Outcome::kDone);
  EXPECT_EQ(ends.server.leave_tls(), Outcome::kDone);
  EXPECT_EQ(arrived(ends.server.fd()), "ten coins");
  EXPECT_EQ(passed(ends.server, ends.client, "yes"), "yes");
}

TEST(SecureSocket, RefusesAnotherKeyOnEitherEnd) {
  auto sockets = socket_pair();
  auto client = SecureSocket::client(std::move(sockets.client), "rank 1", kKey);
  auto server = SecureSocket::server(std::move(sockets.server),
                                     only("rank 1", Key::random()));
  const auto both = shake_hands(client, server);
  EXPECT_EQ(both[0], Outcome::kRefused);
  EXPECT_EQ(both[1], Outcome::kRefused);
}

TEST(SecureSocket, RefusesAnUnknownName) {
  auto sockets = socket_pair();
  auto client = SecureSocket::client(std::move(sockets.client), "me", kKey);
  auto server = SecureSocket::server(std::move(sockets.server), only("rank 1"));
  const auto both = shake_hands(client, server);
  EXPECT_EQ(both[0], Outcome::kRefused);
  EXPECT_EQ(both[1], Outcome::kRefused);
}

TEST(SecureSocket, RefusesAServerThatFailsToFindAKey) {
  auto sockets = socket_pair();
  auto client = SecureSocket::client(std::move(sockets.client), "me", kKey);
  auto server = SecureSocket::server(
      std::move(sockets.server),
      [](std::string_view) -> std::optional<Key> { throw std::bad_alloc(); });
  const auto both = shake_hands(client, server);
  EXPECT_EQ(both[0], Outcome::kRefused);
  EXPECT_EQ(both[1], Outcome::kRefused);
}

TEST(SecureSocket, RefusesOtherProtocols) {
  for (const std::string& greeting :
       {std::string("GET / HTTP/1.1\r\nHost: x\r\n\r\n"),
        std::string("SSH-2.0-OpenSSH_9.2\r\n"), std::string(5000, '\0'),
        std::string(2000, '\xff')}) {
    auto sockets = socket_pair();
    auto server =
        SecureSocket::server(std::move(sockets.server), only("rank 1"));
    put(sockets.client.get(), greeting);
    EXPECT_EQ(server.shake_hands(), Outcome::kRefused) << greeting.substr(0, 9);
    auto other = socket_pair();
    auto client = SecureSocket::client(std::move(other.client), "me", kKey);
    EXPECT_EQ(client.shake_hands(), Outcome::kWantsRead);
    put(other.server.get(), greeting);
    EXPECT_EQ(client.shake_hands(), Outcome::kRefused) << greeting.substr(0, 9);
  }
}

TEST(SecureSocket, ReadsAFewKilobytesOfAStranger) {
  auto sockets = socket_pair();
  auto server = SecureSocket::server(std::move(sockets.server), only("rank 1"));
  // A record of a handshake, that begins a message of 64 KiB.
  std::string record("\x16\x03\x01\x40\x00\x01\x00\xff\xfb\x03\x03", 11);
  record += std::string(5 + 0x4000 - record.size(), 'x');
  put(sockets.client.get(), record);
  EXPECT_EQ(server.shake_hands(), Outcome::kRefused);
  EXPECT_GT(arrived(server.fd()).size(), 10'000U) << "read by the server";
}

// An end that OpenSSL runs without a shared key.
struct Stranger {
  Stranger(FileDescriptor socket, const SSL_METHOD* method)
      : fd(std::move(socket)),
        context(SSL_CTX_new(method)),
        ssl(SSL_new(context)) {
    SSL_set_fd(ssl, fd.get());
  }
  ~Stranger() {
    SSL_free(ssl);
    SSL_CTX_free(context);
  }
  Stranger(const Stranger&) = delete;
  Stranger& operator=(const Stranger&) = delete;

  void use_own_certificate() const {
    EVP_PKEY* const key = EVP_EC_gen("P-256");
    X509* const certificate = X509_new();
    X509_gmtime_adj(X509_getm_notBefore(certificate), 0);
    X509_gmtime_adj(X509_getm_notAfter(certificate), 3600);
    X509_set_pubkey(certificate, key);
    X509_sign(certificate, key, EVP_sha256());
    EXPECT_EQ(SSL_use_certificate(ssl, certificate), 1);
    EXPECT_EQ(SSL_use_PrivateKey(ssl, key), 1);
    X509_free(certificate);
    EVP_PKEY_free(key);
  }

  Outcome shake_hands() const {
    const int result = SSL_do_handshake(ssl);
    if (result == 1) return Outcome::kDone;
    return SSL_get_error(ssl, result) == SSL_ERROR_WANT_READ
               ? Outcome::kWantsRead
               : Outcome::kRefused;
  }

  FileDescriptor fd;
  SSL_CTX* context;
  SSL* ssl;
};

TEST(SecureSocket, RefusesAServerThatHasACertificateInsteadOfTheKey) {
  auto sockets = socket_pair();
  auto client = SecureSocket::client(std::move(sockets.client), "me", kKey);
  Stranger server(std::move(sockets.server), TLS_server_method());
  SSL_set_accept_state(server.ssl);
  server.use_own_certificate();
  const auto both = in_turns([&] { return client.shake_hands(); },
                             [&] { return server.shake_hands(); });
  EXPECT_EQ(both[0], Outcome::kRefused);
}

TEST(SecureSocket, RefusesAClientWithoutAKey) {
  for (const bool has_certificate : {false, true}) {
    auto sockets = socket_pair();
    auto server =
        SecureSocket::server(std::move(sockets.server), only("rank 1"));
    Stranger client(std::move(sockets.client), TLS_client_method());
    SSL_set_connect_state(client.ssl);
    if (has_certificate) client.use_own_certificate();
    const auto both = in_turns([&] { return client.shake_hands(); },
                               [&] { return server.shake_hands(); });
    EXPECT_EQ(both[1], Outcome::kRefused);
  }
}

/// Records what a client sends during a handshake and after it.
std::string recorded_client() {
  auto outer = socket_pair(), inner = socket_pair();
  auto client = SecureSocket::client(std::move(outer.client), "rank 1", kKey);
  auto server = SecureSocket::server(std::move(inner.server), only("rank 1"));
  std::string sent;
  const auto pass = [&] {
    const std::string up = arrived(outer.server.get());
    sent += up;
    put(inner.client.get(), up);
    put(outer.server.get(), arrived(inner.client.get()));
  };
  EXPECT_EQ(in_turns(
                [&] {
                  const Outcome outcome = client.shake_hands();
                  pass();
                  return outcome;
                },
                [&] {
                  const Outcome outcome = server.shake_hands();
                  pass();
                  return outcome;
                }),
            kBothDone);
  size_t count = 0;
  EXPECT_EQ(client.write(bytes_of("ten coins"), count), Outcome::kDone);
  pass();
  return sent;
}

TEST(SecureSocket, RefusesAHandshakeThatIsReplayed) {
  const std::string sent = recorded_client();
  auto sockets = socket_pair();
  auto server = SecureSocket::server(std::move(sockets.server), only("rank 1"));
  put(sockets.client.get(), sent);
  EXPECT_EQ(server.shake_hands(), Outcome::kRefused);
}

TEST(SecureSocket, ProvesNothingWithAHandshakeThatIsCutOrAltered) {
  auto sockets = socket_pair();
  auto client = SecureSocket::client(std::move(sockets.client), "rank 1", kKey);
  EXPECT_EQ(client.shake_hands(), Outcome::kWantsRead);
  const std::string hello = arrived(sockets.server.get());
  ASSERT_GT(hello.size(), 100U);
  for (size_t at = 0; at < hello.size(); ++at) {
    auto cut = socket_pair();
    auto server = SecureSocket::server(std::move(cut.server), only("rank 1"));
    put(cut.client.get(), hello.substr(0, at));
    EXPECT_EQ(server.shake_hands(), Outcome::kWantsRead) << at;
    cut.client.close();
    EXPECT_EQ(server.shake_hands(), Outcome::kClosed) << at;
    auto altered = socket_pair();
    server = SecureSocket::server(std::move(altered.server), only("rank 1"));
    std::string other = hello;
    other[at] = static_cast<char>(other[at] ^ 1);
    put(altered.client.get(), other);
    EXPECT_NE(server.shake_hands(), Outcome::kDone) << at;
  }
}

TEST(SecureSocket, RefusesBytesThatWereAltered) {
  Proven ends;
  size_t count = 0;
  ASSERT_EQ(ends.client.write(bytes_of("10 coins"), count), Outcome::kDone);
  std::string wire = arrived(ends.server.fd());
  wire.back() = static_cast<char>(wire.back() ^ 1);
  put(ends.client.fd(), wire);
  std::array<std::byte, 100> buffer;
  EXPECT_EQ(ends.server.read(buffer, count), Outcome::kRefused);
}

TEST(SecureSocket, RefusesBytesThatWereRepeated) {
  Proven ends;
  size_t count = 0;
  ASSERT_EQ(ends.client.write(bytes_of("10 coins"), count), Outcome::kDone);
  const std::string wire = arrived(ends.server.fd());
  put(ends.client.fd(), wire + wire);
  std::array<std::byte, 100> buffer;
  EXPECT_EQ(ends.server.read(buffer, count), Outcome::kDone);
  EXPECT_EQ(ends.server.read(buffer, count), Outcome::kRefused);
}

TEST(SecureSocket, NoticesTheEndOfTheOtherEnd) {
  std::array<std::byte, 100> buffer;
  size_t count = 0;
  {
    Proven ends;
    ends.client = SecureSocket();
    EXPECT_EQ(ends.server.read(buffer, count), Outcome::kClosed);
    EXPECT_EQ(ends.server.write(bytes_of("x"), count), Outcome::kClosed);
  }
  auto sockets = socket_pair();
  SecureSocket plain(std::move(sockets.server));
  sockets.client.close();
  EXPECT_EQ(plain.read(buffer, count), Outcome::kClosed);
  EXPECT_EQ(plain.write(bytes_of("x"), count), Outcome::kClosed);
}

}  // namespace
}  // namespace lockstep::store
