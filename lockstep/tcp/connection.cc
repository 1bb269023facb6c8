#include "lockstep/tcp/connection.h"

#include <algorithm>
#include <array>
#include <cerrno>
#include <fcntl.h>
#include <netinet/in.h>
#include <netinet/tcp.h>
#include <poll.h>
#include <sys/socket.h>
#include <sys/uio.h>
#include <utility>

namespace lockstep::tcp {
namespace {

// Limits of one system call: a header and some segments. Data that has arrived
// is then summed while it is in the cache.
constexpr size_t kPieces = 8;
constexpr size_t kBytesAtATime = 256 * 1024;

iovec piece_of(std::span<const std::byte> bytes) {
  // sendmsg() and recvmsg() use the same type, but sendmsg() only reads.
  return {.iov_base = const_cast<std::byte*>(bytes.data()),
          .iov_len = bytes.size()};
}

Connection::Progress progress_of(store::SecureSocket::Outcome outcome) {
  switch (outcome) {
    case store::SecureSocket::Outcome::kDone:
      return Connection::Progress::kSome;
    case store::SecureSocket::Outcome::kWantsRead:
    case store::SecureSocket::Outcome::kWantsWrite:
      return Connection::Progress::kNone;
    default:
      return Connection::Progress::kClosed;
  }
}

}  // namespace

Connection::Connection(store::SecureSocket socket)
    : socket_(std::move(socket)) {
  const int flags = ::fcntl(fd(), F_GETFL);
  ::fcntl(fd(), F_SETFL, flags | O_NONBLOCK);
  const int on = 1;
  ::setsockopt(fd(), IPPROTO_TCP, TCP_NODELAY, &on, sizeof on);
  ::setsockopt(fd(), SOL_SOCKET, SO_KEEPALIVE, &on, sizeof on);
}

void Connection::queue_send(std::span<const std::byte> bytes) {
  if (!bytes.empty()) sends_.push_back(bytes);
}

void Connection::queue_receive(std::span<std::byte> bytes,
                               std::function<void()> done) {
  if (!bytes.empty()) {
    receives_.push_back({bytes, std::move(done)});
  } else if (done) {
    done();
  }
}

void Connection::clear() {
  sends_.clear();
  receives_.clear();
}

Connection::Progress Connection::send_some() {
  if (socket_.is_encrypted() && !sends_.empty()) return send_encrypted();
  std::array<iovec, kPieces> pieces;
  size_t count = 0, asked = 0;
  for (const auto& bytes : sends_) {
    if (count == kPieces || asked >= kBytesAtATime) break;
    pieces[count++] = piece_of(bytes);
    asked += bytes.size();
  }
  if (count == 0) return Progress::kNone;
  msghdr message{};
  message.msg_iov = pieces.data();
  message.msg_iovlen = count;
  // With MSG_NOSIGNAL, a peer that is gone causes an error and not a signal.
  const ssize_t sent = ::sendmsg(fd(), &message, MSG_NOSIGNAL | MSG_DONTWAIT);
  if (sent < 0) {
    if (!store::is_transient(errno)) return Progress::kClosed;
    is_full_ = errno != EINTR;
    return Progress::kNone;
  }
  is_full_ = static_cast<size_t>(sent) < asked;
  drop_sent(static_cast<size_t>(sent));
  return Progress::kSome;
}

void Connection::drop_sent(size_t sent) {
  while (sent > 0) {
    const size_t first_bytes = std::min(sent, sends_.front().size());
    sends_.front() = sends_.front().subspan(first_bytes);
    sent -= first_bytes;
    if (sends_.front().empty()) sends_.pop_front();
  }
}

Connection::Progress Connection::receive_some() {
  if (socket_.is_encrypted() && !receives_.empty()) return receive_encrypted();
  std::array<iovec, kPieces> pieces;
  size_t count = 0, asked = 0;
  for (const Receive& receive : receives_) {
    if (count == kPieces || asked >= kBytesAtATime) break;
    pieces[count++] = piece_of(receive.bytes);
    asked += receive.bytes.size();
  }
  if (count == 0) return Progress::kNone;
  msghdr message{};
  message.msg_iov = pieces.data();
  message.msg_iovlen = count;
  const ssize_t received = ::recvmsg(fd(), &message, MSG_DONTWAIT);
  if (received == 0) return Progress::kClosed;
  if (received < 0) {
    if (!store::is_transient(errno)) return Progress::kClosed;
    is_drained_ = errno != EINTR;
    return Progress::kNone;
  }
  is_drained_ = static_cast<size_t>(received) < asked;
  finish_received(static_cast<size_t>(received));
  return Progress::kSome;
}

void Connection::finish_received(size_t received) {
  while (received > 0) {
    Receive& first = receives_.front();
    const size_t first_bytes = std::min(received, first.bytes.size());
    first.bytes = first.bytes.subspan(first_bytes);
    received -= first_bytes;
    if (!first.bytes.empty()) return;
    const auto done = std::move(first.done);
    receives_.pop_front();
    if (done) done();
  }
}

Connection::Progress Connection::send_encrypted() {
  size_t sent = 0;
  const Progress progress = progress_of(socket_.write(sends_.front(), sent));
  if (progress == Progress::kNone) is_full_ = true;
  if (progress == Progress::kSome) drop_sent(sent);
  return progress;
}

Connection::Progress Connection::receive_encrypted() {
  size_t received = 0;
  const Progress progress =
      progress_of(socket_.read(receives_.front().bytes, received));
  // Set only here, because TLS may hold bytes that poll() does not see.
  if (progress == Progress::kNone) is_drained_ = true;
  if (progress == Progress::kSome) finish_received(received);
  return progress;
}

void Connection::set_ready(short events) {
  // If the connection broke, the next call on it returns the error.
  const bool is_broken = (events & (POLLERR | POLLHUP | POLLNVAL)) != 0;
  if (is_broken || (events & POLLOUT) != 0) is_full_ = false;
  if (is_broken || (events & POLLIN) != 0) is_drained_ = false;
}

void Connection::shut_down() noexcept {
  if (is_open()) ::shutdown(fd(), SHUT_RDWR);
}

void Connection::reset() noexcept {
  if (!is_open()) return;
  // connect(2): an address of this family ends the connection.
  const sockaddr none{.sa_family = AF_UNSPEC, .sa_data = {}};
  if (::connect(fd(), &none, sizeof none) != 0) shut_down();
}

}  // namespace lockstep::tcp
