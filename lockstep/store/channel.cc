#include "lockstep/store/channel.h"

#include <algorithm>
#include <array>
#include <cerrno>
#include <cstring>
#include <poll.h>

#include <fmt/format.h>

namespace lockstep::store {

Channel::Channel(FileDescriptor socket, const Identity& who, const Key& key,
                 Time deadline)
    : socket_(std::move(socket)) {
  const std::string hello =
      encode(Hello{.identity = who, .nonce = random_nonce()});
  send(framed(hello), deadline);
  const std::string answer = receive(deadline);
  const Challenge challenge = decode_challenge(answer);
  if (challenge.version != kProtocolVersion) {
    throw CommError(
        {.code = ErrorCode::kStoreProtocol,
         .what = "the job's store is of another version of Lockstep",
         .expected = fmt::format("protocol {}", kProtocolVersion),
         .got = std::to_string(challenge.version),
         .fix = "use the same version on all nodes"});
  }
  const Handshake handshake(key, hello, answer);
  send(framed(handshake.proof()), deadline);
  const auto reply = handshake.decode_admission_reply(receive(deadline));
  if (!reply) {
    throw CommError(
        {.code = ErrorCode::kBadSecret,
         .what = "the store at " +
                 SocketAddress::of_peer(socket_.get()).text() + " and " +
                 who.text() + " know different secrets",
         .expected = "a server with the job's secret",
         .got = "one with another secret",
         .fix = "give the same --secret-file (LOCKSTEP_SECRET_FILE) to all; is "
                "another job or program at this port?"});
  }
  if (reply->admission != Admission::kWelcome) {
    throw Refused(reply->admission,
                  {.code = ErrorCode::kStoreRefused,
                   .what = "the job's store refused " + who.text(),
                   .got = reply->reason});
  }
  session_ = handshake.client_session();
  in_.set_most(limits_.message_bytes());
}

Reply Channel::ask(const Request& request, Time deadline) {
  send(session_->seal(encode(request)), deadline);
  const std::string frame = receive(deadline);
  return decode_reply(session_->open(frame), limits_);
}

bool Channel::is_alive() const {
  pollfd ready{socket_.get(), POLLIN | POLLRDHUP, 0};
  return ::poll(&ready, 1, 0) == 0;
}

void Channel::send(std::string_view bytes, Time deadline) {
  while (!bytes.empty()) {
    const ssize_t put =
        ::send(socket_.get(), bytes.data(), bytes.size(), MSG_NOSIGNAL);
    if (put > 0) {
      bytes.remove_prefix(static_cast<size_t>(put));
    } else if (errno == EAGAIN) {
      wait_for(POLLOUT, deadline);
    } else if (errno != EINTR) {
      throw Disconnected({.code = ErrorCode::kStoreUnreachable,
                          .what = "the store is gone",
                          .got = std::strerror(errno)});
    }
  }
}

std::string Channel::receive(Time deadline) {
  std::array<char, 65536> buffer;
  std::string frame;
  while (!in_.next(frame)) {
    const ssize_t got = ::recv(socket_.get(), buffer.data(), buffer.size(), 0);
    if (got > 0) {
      in_.add({buffer.data(), static_cast<size_t>(got)});
    } else if (got == 0) {
      throw Disconnected({.code = ErrorCode::kStoreUnreachable,
                          .what = "the store closed the connection"});
    } else if (errno == EAGAIN) {
      wait_for(POLLIN, deadline);
    } else if (errno != EINTR) {
      throw Disconnected({.code = ErrorCode::kStoreUnreachable,
                          .what = "the store is gone",
                          .got = std::strerror(errno)});
    }
  }
  return frame;
}

void Channel::wait_for(short event, Time deadline) const {
  const auto left = std::chrono::ceil<std::chrono::milliseconds>(
      deadline - std::chrono::steady_clock::now());
  pollfd ready{socket_.get(), event, 0};
  const int64_t left_ms = std::clamp<int64_t>(left.count(), 0, INT32_MAX);
  const int found = ::poll(&ready, 1, static_cast<int>(left_ms));
  if (found < 0 && errno == EINTR) return;
  if (found <= 0 && std::chrono::steady_clock::now() >= deadline) {
    throw TimedOut({.code = ErrorCode::kStoreUnreachable,
                    .what = "the store did not answer in time"});
  }
}

}  // namespace lockstep::store
