#include "lockstep/tcp/point_to_point.h"

#include <algorithm>
#include <cerrno>
#include <cstdint>
#include <linux/sockios.h>
#include <sys/eventfd.h>
#include <sys/ioctl.h>
#include <utility>

#include <fmt/format.h>

#include "lockstep/base/error.h"
#include "lockstep/base/out_of_resources.h"
#include "lockstep/base/printable.h"
#include "lockstep/base/start_thread.h"
#include "lockstep/store/socket_address.h"

namespace lockstep::tcp {

using shm::P2pChannel;
using shm::P2pOperation;

namespace {

FileDescriptor make_eventfd() {
  const int fd = ::eventfd(0, EFD_NONBLOCK | EFD_CLOEXEC);
  if (fd < 0) {
    throw OutOfResources("comm", "can't make the eventfd of a rank's messages",
                         errno);
  }
  return FileDescriptor(fd);
}

/// Returns the size of the data behind the header, after checking it.
size_t payload_bytes(const Frame& frame) {
  switch (frame.kind) {
    case FrameKind::kMessage:
      if (frame.bytes <= kEagerBytes) return frame.bytes;
      break;
    case FrameKind::kFail:
      if (frame.bytes <= kReasonBytes) return frame.bytes;
      break;
    case FrameKind::kAnnounce:
    case FrameKind::kAccept:
    case FrameKind::kRefuse:
    case FrameKind::kDrop:
    case FrameKind::kData:  // has its own memory
    case FrameKind::kWithdraw:
    case FrameKind::kCredit:
    case FrameKind::kLeave:
      return 0;
  }
  throw protocol_error(fmt::format("a frame of kind {} with {} bytes",
                                   static_cast<uint32_t>(frame.kind),
                                   frame.bytes));
}

}  // namespace

PointToPoint::Peer::Peer(store::SecureSocket socket,
                         shm::FinishedOperations& finished)
    : sender(connection, finished),
      payload(std::max(kEagerBytes, kReasonBytes)) {
  if (socket.is_open()) {
    connection = Connection(std::move(socket));
  } else {
    sender.close();
  }
}

PointToPoint::PointToPoint(int rank, std::vector<store::SecureSocket> sockets,
                           std::vector<std::string> names)
    : P2pChannel(rank, static_cast<int>(sockets.size())),
      names_(std::move(names)),
      wake_(make_eventfd()),
      receiver_(rank, ranks(),
                {.queue =
                     [this](int peer, const Frame& frame) {
                       at(peer).sender.queue(frame);
                     },
                 .redirect =
                     [this](int peer, std::vector<std::byte>& scratch) {
                       at(peer).connection.redirect_receives(scratch);
                     }},
                finished_) {
  for (store::SecureSocket& socket : sockets)
    peers_.emplace_back(std::move(socket), finished_);
  for (int peer = 0; peer < ranks(); ++peer) {
    if (peer != own_rank()) await_frame(peer);
  }
}

PointToPoint::~PointToPoint() {
  {
    // Under the lock, so that no operation starts the thread from now on.
    const Lock lock = this->lock();
    is_stopping_.store(true);
  }
  wake();
  if (thread_.joinable()) thread_.join();
  leave();
  flush();
}

void PointToPoint::leave() {
  Lock lock = this->lock();
  has_left_ = true;
  for (Peer& peer : peers_) {
    peer.sender.queue_last({.kind = FrameKind::kLeave});
  }
  fail_operations();
  run_finished(std::move(lock));
}

// Bytes that the system of the peer has acknowledged arrive even if the
// connection is closed now. Others might not: closing a connection with unread
// bytes resets it.
void PointToPoint::flush() {
  const auto deadline = Clock::now() + kFlushTime;
  const auto is_flushed = [&](Peer& peer) {
    if (!peer.connection.is_open()) return true;
    peer.connection.set_ready(POLLOUT);
    while (peer.sender.advance()) continue;
    int unacknowledged = 0;
    ::ioctl(peer.connection.fd(), SIOCOUTQ, &unacknowledged);
    if (unacknowledged == 0 && !peer.sender.has_unsent()) return true;
    pollfd broken{.fd = peer.connection.fd(), .events = 0, .revents = 0};
    return ::poll(&broken, 1, 0) > 0;
  };
  while (std::count_if(peers_.begin(), peers_.end(), is_flushed) != ranks() &&
         Clock::now() < deadline) {
    // Nothing tells of an acknowledgement, so look again after a while.
    ::poll(nullptr, 0, 1);
  }
}

PointToPoint::Lock PointToPoint::lock() {
  const std::lock_guard turn(turn_);
  return Lock(mutex_);
}

void PointToPoint::run_finished(Lock lock) {
  shm::FinishedOperations finished = std::exchange(finished_, {});
  lock.unlock();
  for (auto& operation : finished) operation.run();
}

void PointToPoint::wake() {
  const uint64_t one = 1;
  // It fails only if the counter is at its limit, so the thread wakes anyway.
  [[maybe_unused]] const ssize_t written =
      ::write(wake_.get(), &one, sizeof one);
}

void PointToPoint::expect_end(Clock::time_point deadline) {
  if (!is_stopping_.load() && !has_left_ && !thread_.joinable()) {
    thread_ = start_thread("comm", "a rank's messages", [this] { run(); });
  }
  if (deadline >= next_deadline_) return;
  next_deadline_ = deadline;
  wake();
}

void PointToPoint::start_send(P2pOperation send,
                              std::span<const std::byte> data) {
  const int to = send.peer;
  Lock lock = this->lock();
  expect_end(send.deadline);
  if (is_over(to)) {
    std::exception_ptr error = failure_of(send);
    finished_.emplace_back(std::move(send), to, std::move(error));
  } else {
    at(to).sender.send(std::move(send), data);
    send_queued();
  }
  run_finished(std::move(lock));
}

void PointToPoint::start_receive(P2pOperation receive,
                                 std::span<std::byte> data) {
  const int from = receive.peer;
  Lock lock = this->lock();
  expect_end(receive.deadline);
  receiver_.add(std::move(receive), data);
  if (is_over(from)) fail_operations();
  send_queued();
  run_finished(std::move(lock));
}

void PointToPoint::send_queued() {
  for (Peer& peer : peers_) {
    if (!peer.sender.has_queued()) continue;
    peer.sender.advance();
    if (peer.sender.has_unsent()) wake();
  }
}

void PointToPoint::abort(const std::string& reason) noexcept {
  try {
    Lock lock = this->lock();
    if (failure_) return;
    transport::FailureText text{};
    transport::set_failure(text, reason);
    failure_ = std::string(transport::text_of(text));
    for (Peer& peer : peers_) {
      peer.sender.queue_last(
          {.kind = FrameKind::kFail, .bytes = failure_->size()},
          std::as_bytes(std::span(*failure_)));
    }
    fail_operations();
    send_queued();
    run_finished(std::move(lock));
  } catch (const std::exception&) {
    // The other ranks then wait until their timeouts.
  }
}

void PointToPoint::run() {
  while (!is_stopping_.load()) {
    bool has_moved = false;
    try {
      Lock lock = this->lock();
      has_moved = step();
      run_finished(std::move(lock));
    } catch (const std::exception& error) {
      abort(text_of(error));  // there is no memory for a message
    }
    if (!has_moved) sleep();
  }
}

// Returns whether a socket took or had anything.
bool PointToPoint::step() {
  for (size_t i = 0; i < polled_ranks_.size(); ++i) {
    at(polled_ranks_[i]).connection.set_ready(polled_[i + 1].revents);
  }
  polled_ = {{.fd = wake_.get(), .events = POLLIN, .revents = 0}};
  polled_ranks_.clear();
  bool has_moved = false;
  for (int rank = 0; rank < ranks(); ++rank) {
    Peer& peer = at(rank);
    if (!peer.connection.is_open()) continue;
    has_moved = receive_from(rank) || has_moved;
    if (!peer.connection.is_open()) continue;
    has_moved = peer.sender.advance() || has_moved;
  }
  if (Clock::now() >= next_deadline_) fail_operations();
  wake_time_ = next_deadline_;
  for (int rank = 0; rank < ranks(); ++rank) {
    const Peer& peer = at(rank);
    if (!peer.connection.is_open()) continue;
    short events = POLLIN;
    if (peer.sender.has_unsent()) events |= POLLOUT;
    polled_.push_back(
        {.fd = peer.connection.fd(), .events = events, .revents = 0});
    polled_ranks_.push_back(rank);
  }
  return has_moved;
}

void PointToPoint::sleep() {
  const bool has_end = wake_time_ != Clock::time_point::max();
  ::poll(polled_.data(), polled_.size(),
         has_end ? store::poll_timeout_ms(wake_time_) : -1);
  if ((polled_[0].revents & POLLIN) == 0) return;
  uint64_t count = 0;
  [[maybe_unused]] const ssize_t read =
      ::read(wake_.get(), &count, sizeof count);
}

bool PointToPoint::receive_from(int rank) {
  Peer& peer = at(rank);
  if (peer.connection.is_drained()) return false;
  auto progress = Connection::Progress::kNone;
  try {
    progress = peer.connection.receive_some();
  } catch (const std::exception& error) {
    peer.end =
        fmt::format("{} was disconnected: {}", name(rank), text_of(error));
  }
  if (progress == Connection::Progress::kClosed && !peer.end) {
    peer.end = name(rank) + " ended (its connection closed)";
  }
  if (peer.end) lose(rank);
  return progress == Connection::Progress::kSome;
}

void PointToPoint::await_frame(int rank) {
  Peer& peer = at(rank);
  peer.connection.queue_receive(
      std::as_writable_bytes(std::span(&peer.frame, 1)),
      [this, rank] { on_header(rank); });
}

void PointToPoint::on_header(int rank) {
  Peer& peer = at(rank);
  const std::span<std::byte> memory =
      peer.frame.kind == FrameKind::kData
          ? receiver_.memory_for(rank, peer.frame)
          : std::span(peer.payload).first(payload_bytes(peer.frame));
  peer.connection.queue_receive(memory, [this, rank] { on_frame(rank); });
}

void PointToPoint::on_frame(int rank) {
  Peer& peer = at(rank);
  const Frame& frame = peer.frame;
  const auto gave_up = [&](const P2pOperation& operation) {
    return shm::ended_by(name(rank) + " gave up on the message", operation,
                         own_rank());
  };
  switch (frame.kind) {
    case FrameKind::kMessage:
      receiver_.on_message(rank, frame.tag,
                           std::span(peer.payload).first(frame.bytes));
      break;
    case FrameKind::kAnnounce:
      receiver_.on_announce(rank, frame);
      break;
    case FrameKind::kData:
      receiver_.on_data(rank, frame);
      break;
    case FrameKind::kWithdraw:
      receiver_.on_withdraw(rank, frame.id, gave_up);
      break;
    case FrameKind::kAccept:
    case FrameKind::kRefuse:
      peer.sender.on_answer(frame.id, frame.kind == FrameKind::kAccept);
      break;
    case FrameKind::kDrop:
      peer.sender.on_drop(frame.id, gave_up);
      break;
    case FrameKind::kCredit:
      peer.sender.on_credit(frame.bytes);
      break;
    case FrameKind::kFail: {
      const std::string reason(
          reinterpret_cast<const char*>(peer.payload.data()), frame.bytes);
      peer.end = fmt::format("{} failed: {}", name(rank),
                             printable(reason, kReasonBytes));
      return;
    }
    case FrameKind::kLeave:
      peer.end = name(rank) + " left the group";
      return;
  }
  await_frame(rank);
}

// Closes the connection and ends the operations with the peer. Its `end` must
// be set.
void PointToPoint::lose(int rank) {
  Peer& peer = at(rank);
  peer.sender.close();
  peer.connection = Connection();
  receiver_.on_end(rank, [&](const P2pOperation& its) {
    return shm::ended_by(*peer.end, its, own_rank());
  });
  fail_operations();
}

void PointToPoint::fail_operations() {
  const auto judge = [&](const P2pOperation& its) { return failure_of(its); };
  next_deadline_ = receiver_.fail(judge);
  for (Peer& peer : peers_) {
    next_deadline_ = std::min(next_deadline_, peer.sender.fail(judge));
  }
}

bool PointToPoint::is_over(int peer) const {
  return has_left_ || failure_ || !ends_of(peer).empty();
}

std::exception_ptr PointToPoint::failure_of(
    const P2pOperation& operation) const {
  if (has_left_) return shm::left_during(operation, own_rank());
  if (failure_) {
    return shm::ended_by(
        fmt::format("{} failed: {}", name(own_rank()), *failure_), operation,
        own_rank());
  }
  return P2pChannel::failure_of(operation);
}

std::string PointToPoint::state_of(int rank) const {
  return name(rank) + " is connected";
}

}  // namespace lockstep::tcp
