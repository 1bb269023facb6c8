#include "lockstep/store/store_connection.h"

#include <array>
#include <cerrno>
#include <netinet/tcp.h>
#include <sys/socket.h>

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

Connection::Connection(Number number, FileDescriptor socket, Time now)
    : number_(number),
      socket_(std::move(socket)),
      address_(SocketAddress::from_peer(socket_.get()).text()),
      since_(now),
      in_(kMaxHandshakeBytes) {
  notice_a_lost_host(fd());
}

bool Connection::read_some() {
  std::array<char, 65536> buffer;
  // A client that has not yet proven its key may only send a few bytes.
  const size_t most = session ? buffer.size() : 2 * kMaxHandshakeBytes;
  const ssize_t got = ::recv(fd(), buffer.data(), most, 0);
  if (got > 0) {
    in_.add({buffer.data(), static_cast<size_t>(got)});
    return true;
  }
  return got < 0 && (errno == EAGAIN || errno == EINTR);
}

bool Connection::write_some() {
  while (has_output()) {
    const ssize_t put = ::send(fd(), out_.data() + written_,
                               out_.size() - written_, MSG_NOSIGNAL);
    if (put < 0 && errno == EINTR) continue;
    if (put < 0) return errno == EAGAIN;
    written_ += static_cast<size_t>(put);
  }
  out_.clear();
  written_ = 0;
  return true;
}

}  // namespace lockstep::store
