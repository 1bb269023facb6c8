#include "lockstep/store/store_connection.h"

#include <array>
#include <netinet/tcp.h>
#include <span>
#include <sys/socket.h>
#include <utility>

#include "lockstep/base/error.h"
#include "lockstep/store/socket_address.h"

namespace lockstep::store {
namespace {

// Turns on keep-alive. A host that crashed sends nothing; with keep-alive, its
// connections end within half a minute.
void notice_a_lost_host(int fd) {
  const int on = 1;
  const int idle_s = 10;
  const int interval_s = 5;
  const int probes = 4;
  ::setsockopt(fd, SOL_SOCKET, SO_KEEPALIVE, &on, sizeof on);
  ::setsockopt(fd, IPPROTO_TCP, TCP_KEEPIDLE, &idle_s, sizeof idle_s);
  ::setsockopt(fd, IPPROTO_TCP, TCP_KEEPINTVL, &interval_s, sizeof interval_s);
  ::setsockopt(fd, IPPROTO_TCP, TCP_KEEPCNT, &probes, sizeof probes);
  ::setsockopt(fd, IPPROTO_TCP, TCP_NODELAY, &on, sizeof on);
}

}  // namespace

Connection::Connection(Number number, FileDescriptor socket,
                       SecureSocket::FindKey find_key, Time now)
    : number_(number),
      socket_(SecureSocket::server(std::move(socket), std::move(find_key))),
      address_(SocketAddress::from_peer(fd()).text()),
      since_(now),
      in_(kMaxHelloBytes) {
  notice_a_lost_host(fd());
}

bool Connection::shake_hands() {
  const auto outcome = socket_.shake_hands();
  wants_write_ = outcome == SecureSocket::Outcome::kWantsWrite;
  if (outcome == SecureSocket::Outcome::kDone) stage = Stage::kHello;
  if (outcome == SecureSocket::Outcome::kRefused) {
    throw CommError({.code = ErrorCode::kBadSecret,
                     .what = "it does not know the job's secret, or is no "
                             "client of this version of Lockstep"});
  }
  return outcome != SecureSocket::Outcome::kClosed;
}

bool Connection::read_some() {
  if (stage == Stage::kHandshake) {
    if (!shake_hands()) return false;
    if (stage == Stage::kHandshake) return true;
  }
  std::array<std::byte, SecureSocket::kRecordBytes> buffer;
  size_t got = 0;
  switch (socket_.read(buffer, got)) {
    case SecureSocket::Outcome::kDone:
      in_.add({reinterpret_cast<const char*>(buffer.data()), got});
      return true;
    case SecureSocket::Outcome::kClosed:
      return false;
    case SecureSocket::Outcome::kRefused:
      throw CommError({.code = ErrorCode::kStoreProtocol,
                       .what = "bytes on a connection of the store are not "
                               "what the client sent",
                       .got = "altered, repeated or injected ones"});
    default:
      return true;
  }
}

bool Connection::write_some() {
  if (stage == Stage::kHandshake) return !wants_write_ || shake_hands();
  while (has_output()) {
    const auto rest = std::as_bytes(std::span(out_)).subspan(written_);
    size_t put = 0;
    const auto outcome = socket_.write(rest, put);
    if (outcome == SecureSocket::Outcome::kWantsWrite) return true;
    if (outcome != SecureSocket::Outcome::kDone) return false;
    written_ += put;
  }
  out_.clear();
  written_ = 0;
  return true;
}

}  // namespace lockstep::store
