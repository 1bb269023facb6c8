#include "lockstep/tcp/connection.h"

#include <algorithm>
#include <array>
#include <cerrno>
#include <fcntl.h>
#include <netinet/in.h>
#include <netinet/tcp.h>
#include <sys/socket.h>
#include <sys/uio.h>
#include <utility>

namespace lockstep::tcp {
namespace {

// What one system call moves at most: a header and some segments. What has
// come is summed while it is in the cache.
constexpr size_t kPieces = 8;
constexpr size_t kBytesAtATime = 256 * 1024;

iovec piece_of(std::span<const std::byte> bytes) {
  // sendmsg() reads what recvmsg() writes through the same type.
  return {.iov_base = const_cast<std::byte*>(bytes.data()),
          .iov_len = bytes.size()};
}

bool is_transient(int error) {
  return error == EAGAIN || error == EWOULDBLOCK || error == EINTR ||
         error == ENOBUFS;
}

}  // namespace

Connection::Connection(FileDescriptor socket) : socket_(std::move(socket)) {
  const int flags = ::fcntl(socket_.get(), F_GETFL);
  ::fcntl(socket_.get(), F_SETFL, flags | O_NONBLOCK);
  const int on = 1;
  ::setsockopt(socket_.get(), IPPROTO_TCP, TCP_NODELAY, &on, sizeof on);
  ::setsockopt(socket_.get(), SOL_SOCKET, SO_KEEPALIVE, &on, sizeof on);
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
  // MSG_NOSIGNAL: a peer that is gone is an error here, not a signal.
  const ssize_t sent = ::sendmsg(fd(), &message, MSG_NOSIGNAL | MSG_DONTWAIT);
  if (sent < 0) {
    if (!is_transient(errno)) return Progress::kClosed;
    is_full_ = errno != EINTR;
    return Progress::kNone;
  }
  auto left = static_cast<size_t>(sent);
  is_full_ = left < asked;
  while (left > 0) {
    const size_t of_first = std::min(left, sends_.front().size());
    sends_.front() = sends_.front().subspan(of_first);
    left -= of_first;
    if (sends_.front().empty()) sends_.pop_front();
  }
  return Progress::kSome;
}

Connection::Progress Connection::receive_some() {
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
    if (!is_transient(errno)) return Progress::kClosed;
    is_drained_ = errno != EINTR;
    return Progress::kNone;
  }
  auto left = static_cast<size_t>(received);
  is_drained_ = left < asked;
  while (left > 0) {
    Receive& first = receives_.front();
    const size_t of_first = std::min(left, first.bytes.size());
    first.bytes = first.bytes.subspan(of_first);
    left -= of_first;
    if (!first.bytes.empty()) break;
    const auto done = std::move(first.done);
    receives_.pop_front();
    if (done) done();
  }
  return Progress::kSome;
}

void Connection::set_ready(bool to_send, bool to_receive) {
  if (to_send) is_full_ = false;
  if (to_receive) is_drained_ = false;
}

void Connection::shut_down() noexcept {
  if (socket_.is_open()) ::shutdown(fd(), SHUT_RDWR);
}

}  // namespace lockstep::tcp
