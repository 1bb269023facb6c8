#include "lockstep/tcp/channel.h"

#include <algorithm>
#include <cstring>
#include <sys/epoll.h>
#include <utility>

#include <fmt/format.h>

#include "lockstep/base/error.h"
#include "lockstep/base/printable.h"
#include "lockstep/base/start_thread.h"

namespace lockstep::tcp {
namespace {

using std::chrono::milliseconds;
using Outcome = store::SecureSocket::Outcome;

constexpr const char* kForMessages = "messages";
// Longer timeouts than this are the same, and do not overflow the clock.
constexpr std::chrono::hours kLongest{24 * 365};
// A rank that is awaited and has no connection is looked at this often. It is
// gone if it is found so twice, because its last message may have come in
// between. A process that is killed closes its connections some time before its
// end is known, so a closed connection is reported as such only after more.
constexpr milliseconds kLookEvery{100};
constexpr int kLooksIfGone = 2;
constexpr int kLooksIfClosed = 6;
constexpr milliseconds kConnectEvery{5};
// The thread looks at all deadlines at least this often. So it need not be
// woken for an operation whose deadline is later.
constexpr milliseconds kWakeEvery{10'000};
constexpr milliseconds kHandshakeTime{3000};
constexpr size_t kMaxReasonBytes = 400;
// Limit on what is sent to or read from one rank before the next one has its
// turn.
constexpr size_t kBytesATurn = size_t{1} << 20;

MessageOperation operation_of(MessageOperation::Kind kind, int peer, int tag,
                              size_t bytes, milliseconds timeout,
                              MessageDone done) {
  return {.kind = kind,
          .peer = peer,
          .tag = tag,
          .bytes = bytes,
          .deadline = MessageOperation::Clock::now() +
                      std::min<milliseconds>(timeout, kLongest),
          .done = std::move(done)};
}

std::span<std::byte> memory_of(std::unique_ptr<std::byte[]>& data,
                               size_t bytes) {
  return {data.get(), bytes};
}

}  // namespace

Channel::Channel(int rank, int ranks, Door door, const transport::Peers& group)
    : rank_(rank),
      ranks_(ranks),
      group_(group),
      door_(std::move(door)),
      strangers_(events_,
                 {.purpose = kForMessages,
                  .rank = rank,
                  .ranks = ranks,
                  .listening = door_.listening.get(),
                  .key = door_.keys[static_cast<size_t>(rank)],
                  .data = door_.data,
                  .time = kHandshakeTime},
                 [this](int peer, store::SecureSocket socket) {
                   join(peer, std::move(socket));
                 }),
      outgoing_(static_cast<size_t>(ranks)),
      incoming_(static_cast<size_t>(ranks)) {
  thread_ = start_thread("comm", "the messages of a group", [this] { run(); });
}

Channel::~Channel() {
  events_.stop();
  thread_.join();
  Lock lock(mutex_);
  end_all([this](const MessageOperation& operation) {
    return left_during(operation, rank_);
  });
  finish(lock);
}

void Channel::send(int peer, int tag, std::span<const std::byte> data,
                   Milliseconds timeout, MessageDone done) {
  check_peer(peer, rank_, ranks_);
  Lock lock(mutex_);
  Outgoing& out = to(peer);
  out.sends.push_back(
      {.operation = operation_of(MessageOperation::Kind::kSend, peer, tag,
                                 data.size(), timeout, std::move(done)),
       .data = data});
  // Most messages fit into the socket, and need no other thread.
  if (out.sends.size() == 1 && out.socket.is_open()) flush(peer);
  if (!out.sends.empty()) events_.wake();
  finish(lock);
}

void Channel::receive(int peer, int tag, std::span<std::byte> data,
                      Milliseconds timeout, MessageDone done) {
  if (peer != kAnySource || ranks_ == 1) check_peer(peer, rank_, ranks_);
  Lock lock(mutex_);
  receives_.push_back(
      {.operation = operation_of(MessageOperation::Kind::kReceive, peer, tag,
                                 data.size(), timeout, std::move(done)),
       .data = data});
  for (auto message = messages_.begin(); message != messages_.end();
       ++message) {
    if (!deliver(*message)) continue;
    messages_.erase(message);
    return finish(lock);
  }
  // If a connection is there, the thread waits for the message already.
  const bool is_connected = peer != kAnySource && from(peer).is_ready();
  if (!is_connected || receives_.back().operation.deadline < sleeps_until_) {
    events_.wake();
  }
}

void Channel::abort(const std::string& reason) noexcept {
  try {
    const Lock lock(mutex_);
    if (!abort_reason_) abort_reason_ = reason;
  } catch (const std::exception&) {
    // The other ranks then see that this rank ends.
  }
  events_.wake();
}

// Calls `done` of what has ended. Gives up the lock.
void Channel::finish(Lock& lock) {
  std::vector<Finished> finished;
  finished.swap(finished_);
  lock.unlock();
  for (Finished& each : finished) {
    each.operation.done(std::move(each.error), each.source);
  }
}

void Channel::end(MessageOperation& operation, int source,
                  std::exception_ptr error) {
  finished_.push_back({std::move(operation), source, std::move(error)});
}

void Channel::run() {
  for (;;) {
    try {
      if (!events_.run_once(prepare())) return;
      const Lock lock(mutex_);
      for (int peer = 0; peer < ranks_; ++peer) {
        if (peer == rank_) continue;
        advance(peer);
        read(peer);
      }
      look_for_ends();
      end_late();
      carry_out_abort();
    } catch (const std::exception& error) {
      // Such as lack of memory or descriptors.
      const std::string text = text_of(error);
      const Lock lock(mutex_);
      end_all([&](const MessageOperation& operation) {
        return ended_by(text, operation, rank_);
      });
    }
    Lock lock(mutex_);
    finish(lock);
  }
}

// Says what to wait for on the connections. Returns until when.
Channel::Time Channel::prepare() {
  const Lock lock(mutex_);
  Time until = Clock::now() + kWakeEvery;
  const auto by = [&](Time time) { until = std::min(until, time); };
  for (int peer = 0; peer < ranks_; ++peer) {
    Outgoing& out = to(peer);
    out.ready = from(peer).ready = 0;
    for (const Send& send : out.sends) by(send.operation.deadline);
    if (out.handshake) {
      events_.change(out.handshake->fd(), out.handshake->events());
    } else if (out.socket.is_open()) {
      // The other end sends nothing, but it may close the connection.
      events_.change(out.socket.fd(),
                     out.sends.empty() ? EPOLLIN : EPOLLIN | EPOLLOUT);
    } else if (!out.sends.empty()) {
      by(out.connect_at);
    }
    Incoming& in = from(peer);
    if (in.socket.is_open()) {
      events_.change(in.socket.fd(), in.is_held_up() ? 0 : EPOLLIN);
      if (in.has_more && !in.is_held_up()) by(Clock::now());
    }
    if (in.receive) by(in.receive->operation.deadline);
  }
  for (const Receive& each : receives_) by(each.operation.deadline);
  for (int peer = 0; peer < ranks_; ++peer) {
    if (peer != rank_ && is_awaited(peer)) by(look_at_);
  }
  if (abort_reason_ && !is_aborted_) by(Clock::now());
  sleeps_until_ = until;
  return until;
}

// Returns whether an operation waits for a rank that has no connection.
bool Channel::is_awaited(int peer) const {
  const auto& out = outgoing_[static_cast<size_t>(peer)];
  const auto& in = incoming_[static_cast<size_t>(peer)];
  if (!out.sends.empty() && !out.socket.is_open()) return true;
  if (in.socket.is_open() || !in.end.empty()) return false;
  return in.receive ||
         std::any_of(receives_.begin(), receives_.end(), [&](const auto& each) {
           return each.operation.peer == peer ||
                  each.operation.peer == kAnySource;
         });
}

void Channel::close(Line& line) {
  events_.remove(line.socket.fd());
  line.socket = store::SecureSocket();
  line.is_closed = true;
  look_at_ = std::min(look_at_, Clock::now());
}

void Channel::connect(int peer) {
  Outgoing& out = to(peer);
  if (out.is_closed || Clock::now() < out.connect_at) return;
  out.connect_at = Clock::now() + kConnectEvery;
  FileDescriptor socket = door_.connect(peer);
  if (!socket.is_open()) return;
  out.handshake =
      Handshake::with(kForMessages, rank_, peer, std::move(socket),
                      door_.keys[static_cast<size_t>(peer)], door_.data);
  events_.add(out.handshake->fd(), EPOLLIN,
              [&out](uint32_t events) { out.ready = events; });
}

void Channel::advance(int peer) {
  Outgoing& out = to(peer);
  if (!out.handshake && !out.socket.is_open() && !out.sends.empty()) {
    connect(peer);
  }
  if (out.handshake) {
    switch (out.handshake->advance()) {
      case Outcome::kDone:
        out.socket = out.handshake->take();
        out.handshake.reset();
        out.ready = 0;  // that was for the handshake
        break;
      case Outcome::kRefused:
        give_up(out);
        out.end =
            fmt::format("somebody else answers in place of rank {}", peer);
        break;
      case Outcome::kClosed:
        // It is not there yet, or it is flooded with connections.
        give_up(out);
        break;
      default:
        break;
    }
  }
  if (!out.socket.is_open()) return;
  const bool has_ended = (out.ready & (EPOLLIN | EPOLLHUP | EPOLLERR)) != 0;
  if (has_ended || !flush(peer)) close(out);
}

// Ends a handshake.
void Channel::give_up(Outgoing& out) {
  if (!out.handshake) return;
  events_.remove(out.handshake->fd());
  out.handshake.reset();
}

// Sends as much as the socket takes, up to kBytesATurn.
bool Channel::flush(int peer) {
  Outgoing& out = to(peer);
  for (size_t bytes = 0; bytes < kBytesATurn && !out.sends.empty();) {
    Send& send = out.sends.front();
    if (!out.is_tried) {
      const Frame frame{.tag = send.operation.tag, .bytes = send.data.size()};
      std::memcpy(out.head.data(), &frame, sizeof frame);
      const size_t first =
          std::min(send.data.size(), out.head.size() - sizeof frame);
      if (first > 0) {
        std::memcpy(out.head.data() + sizeof frame, send.data.data(), first);
      }
      out.head_bytes = sizeof frame + first;
      out.is_tried = true;
    }
    const size_t all = sizeof(Frame) + send.data.size();
    const auto rest = send.sent < out.head_bytes
                          ? std::span<const std::byte>(out.head)
                                .first(out.head_bytes)
                                .subspan(send.sent)
                          : send.data.subspan(send.sent - sizeof(Frame));
    size_t put = 0;
    switch (out.socket.write(rest, put)) {
      case Outcome::kDone:
        send.sent += put;
        bytes += put;
        break;
      case Outcome::kWantsRead:
      case Outcome::kWantsWrite:
        return true;
      default:
        return false;
    }
    if (send.sent < all) continue;
    end(send.operation, peer, nullptr);
    out.sends.pop_front();
    out.is_tried = false;
  }
  return true;
}

// Takes a connection on which another rank sends.
void Channel::join(int peer, store::SecureSocket socket) {
  const Lock lock(mutex_);
  Incoming& in = from(peer);
  // A rank connects once.
  if (in.socket.is_open() || in.is_closed || !in.end.empty()) return;
  events_.add(socket.fd(), EPOLLIN,
              [&in](uint32_t events) { in.ready = events; });
  in.socket = std::move(socket);
  in.ready = EPOLLIN;
}

void Channel::read(int peer) {
  Incoming& in = from(peer);
  if (in.is_held_up()) {
    match(peer);
    in.ready = EPOLLIN;
  }
  if (in.ready == 0 && !in.has_more) return;
  in.is_drained = in.has_more = false;
  for (size_t got = 0;
       got < kBytesATurn && in.socket.is_open() && !in.is_drained;) {
    const size_t before = in.frame_got + in.got;
    if (in.frame_got < sizeof(Frame)) {
      read_frame(peer);
    } else if (!in.is_matched) {
      return;
    } else {
      read_data(peer);
    }
    const size_t after = in.frame_got + in.got;
    got += after > before ? after - before : sizeof(Frame);
  }
  // epoll does not see what TLS has read from the socket.
  in.has_more = in.socket.is_open() && !in.is_drained;
}

bool Channel::read_some(Incoming& in, std::span<std::byte> bytes, size_t& got) {
  size_t count = 0;
  switch (in.socket.read(bytes, count)) {
    case Outcome::kDone:
      got += count;
      in.is_drained = count < bytes.size() && !in.socket.is_encrypted();
      return true;
    case Outcome::kWantsRead:
    case Outcome::kWantsWrite:
      in.is_drained = true;
      return false;
    default:
      close(in);
      return false;
  }
}

void Channel::read_frame(int peer) {
  Incoming& in = from(peer);
  const auto bytes = std::as_writable_bytes(std::span(&in.frame, 1));
  if (!read_some(in, bytes.subspan(in.frame_got), in.frame_got)) return;
  if (in.frame_got < sizeof(Frame)) return;
  const bool is_message = in.frame.kind == Frame::Kind::kMessage;
  if (!is_message && (in.frame.kind != Frame::Kind::kFail ||
                      in.frame.bytes > kMaxReasonBytes)) {
    in.end = fmt::format(
        "rank {} violated the message protocol with a frame of kind {} and {} "
        "bytes",
        peer, static_cast<uint32_t>(in.frame.kind), in.frame.bytes);
    return close(in);
  }
  match(peer);
}

// Returns the first receive that wants a message of `source`.
std::list<Channel::Receive>::iterator Channel::receive_of(int source, int tag) {
  return std::find_if(
      receives_.begin(), receives_.end(), [&](const Receive& each) {
        const MessageOperation& wanted = each.operation;
        return wanted.tag == tag &&
               (wanted.peer == source || wanted.peer == kAnySource);
      });
}

// Finds the place for the data of a frame: a receive, or memory.
void Channel::match(int peer) {
  Incoming& in = from(peer);
  const size_t bytes = in.frame.bytes;
  const auto keep = [&] {
    in.message =
        Message{.source = peer,
                .tag = in.frame.tag,
                .data = std::make_unique_for_overwrite<std::byte[]>(bytes),
                .bytes = bytes};
  };
  in.got = 0;
  if (in.frame.kind == Frame::Kind::kFail) {
    keep();
  } else {
    const auto found = receive_of(peer, in.frame.tag);
    if (found != receives_.end()) {
      if (found->data.size() == bytes) {
        in.receive = std::move(*found);
      } else {
        end(found->operation, peer,
            wrong_size(peer, bytes, in.frame.tag, rank_, found->data.size()));
      }
      receives_.erase(found);
    } else if (bytes <= kMaxUnexpected - in.kept) {
      keep();
      in.kept += bytes;
    } else {
      return;  // until a receive wants it, or takes others
    }
  }
  in.is_matched = true;
  if (bytes == 0) end_message(peer);
}

void Channel::read_data(int peer) {
  Incoming& in = from(peer);
  const size_t left = in.frame.bytes - in.got;
  std::array<std::byte, 65536> unwanted;
  std::span<std::byte> into;
  if (in.receive) {
    into = in.receive->data.subspan(in.got);
  } else if (in.message) {
    into = memory_of(in.message->data, in.message->bytes).subspan(in.got);
  } else {
    into = std::span(unwanted).first(std::min(left, unwanted.size()));
  }
  if (!read_some(in, into, in.got)) return;
  if (in.got == in.frame.bytes) end_message(peer);
}

void Channel::end_message(int peer) {
  Incoming& in = from(peer);
  if (in.receive) {
    end(in.receive->operation, peer, nullptr);
    in.receive.reset();
  } else if (in.message && in.frame.kind == Frame::Kind::kFail) {
    in.end = fmt::format(
        "rank {} gave up: {}", peer,
        printable_ascii({reinterpret_cast<const char*>(in.message->data.get()),
                         in.message->bytes}));
    close(in);
    to(peer).end = in.end;
    close(to(peer));
  } else if (in.message && !deliver(*in.message)) {
    messages_.push_back(std::move(*in.message));
  }
  in.message.reset();
  in.frame_got = in.got = 0;
  in.is_matched = false;
}

// Gives a message that was kept to the first receive that wants it. Returns
// whether there is one.
bool Channel::deliver(Message& message) {
  const auto found = receive_of(message.source, message.tag);
  if (found == receives_.end()) return false;
  const auto data = memory_of(message.data, message.bytes);
  std::exception_ptr error;
  if (found->data.size() != data.size()) {
    error = wrong_size(message.source, data.size(), message.tag, rank_,
                       found->data.size());
  } else {
    std::copy(data.begin(), data.end(), found->data.begin());
  }
  end(found->operation, message.source, error);
  receives_.erase(found);
  Incoming& in = from(message.source);
  in.kept -= message.bytes;
  // Its next frame may have waited for the space.
  if (in.is_held_up()) events_.wake();
  return true;
}

// Looks at the ranks that operations wait for, and that have no connection.
void Channel::look_for_ends() {
  if (Clock::now() < look_at_) return;
  look_at_ = Clock::now() + kLookEvery;
  for (int peer = 0; peer < ranks_; ++peer) {
    if (peer == rank_ || !is_awaited(peer)) continue;
    if (!to(peer).socket.is_open()) look_at(to(peer), peer);
    if (!from(peer).socket.is_open()) look_at(from(peer), peer);
  }
}

void Channel::look_at(Line& line, int peer) {
  const auto end = group_.end_of(peer);
  if (!line.end.empty() || (!end && !line.is_closed)) return;
  if (++line.looks < (end ? kLooksIfGone : kLooksIfClosed)) return;
  line.end = end.value_or(fmt::format("rank {} closed the connection", peer));
}

// Returns why no message of `peer` can arrive any more: how it ended or, for
// kAnySource, how all other ranks ended. Returns "" if one can.
std::string Channel::end_of_receive(int peer) const {
  if (peer != kAnySource) return incoming_[static_cast<size_t>(peer)].end;
  std::string all;
  for (int other = 0; other < ranks_; ++other) {
    if (other == rank_) continue;
    const std::string& end = incoming_[static_cast<size_t>(other)].end;
    if (end.empty()) return {};
    all += (all.empty() ? "" : ", ") + end;
  }
  return all;
}

std::string Channel::whereabouts(int peer) const {
  if (peer != kAnySource) return group_.state_of(peer);
  std::string all;
  for (int other = 0; other < ranks_; ++other) {
    if (other == rank_) continue;
    all += (all.empty() ? "" : ", ") + group_.state_of(other);
  }
  return all;
}

// Ends the operations whose time is over, and those that can't go on.
void Channel::end_late() {
  const Time now = Clock::now();
  const auto error_of = [&](const MessageOperation& operation,
                            const std::string& end) -> std::exception_ptr {
    if (!end.empty()) return ended_by(end, operation, rank_);
    if (now < operation.deadline) return nullptr;
    return timed_out(operation, rank_, whereabouts(operation.peer));
  };
  for (int peer = 0; peer < ranks_; ++peer) {
    Outgoing& out = to(peer);
    for (size_t i = 0; i < out.sends.size();) {
      MessageOperation& send = out.sends[i].operation;
      auto error = error_of(send, out.end);
      if (!error) {
        ++i;
        continue;
      }
      const bool is_begun =
          i == 0 && out.is_tried &&
          (out.sends[0].sent > 0 || out.socket.is_encrypted());
      if (is_begun && out.end.empty()) {
        // The other end would take the next message for the rest of this one.
        out.end = fmt::format(
            "a message to rank {} timed out when a part of it was sent", peer);
        close(out);
      }
      if (i == 0) out.is_tried = false;
      end(send, peer, std::move(error));
      out.sends.erase(out.sends.begin() + static_cast<ptrdiff_t>(i));
    }
    Incoming& in = from(peer);
    if (!in.receive) continue;
    if (auto error = error_of(in.receive->operation, in.end)) {
      end(in.receive->operation, peer, std::move(error));
      in.receive.reset();  // the rest of the message is not wanted
    }
  }
  for (auto each = receives_.begin(); each != receives_.end();) {
    MessageOperation& operation = each->operation;
    auto error = error_of(operation, end_of_receive(operation.peer));
    if (!error) {
      ++each;
      continue;
    }
    end(operation, operation.peer, std::move(error));
    each = receives_.erase(each);
  }
}

void Channel::end_all(
    const std::function<std::exception_ptr(const MessageOperation&)>&
        error_of) {
  const auto end_one = [&](MessageOperation& operation) {
    auto error = error_of(operation);
    end(operation, operation.peer, std::move(error));
  };
  for (Outgoing& out : outgoing_) {
    for (Send& send : out.sends) end_one(send.operation);
    if (out.is_tried) close(out);
    out.sends.clear();
    out.is_tried = false;
  }
  for (Incoming& in : incoming_) {
    if (in.receive) end_one(in.receive->operation);
    in.receive.reset();
  }
  for (Receive& receive : receives_) end_one(receive.operation);
  receives_.clear();
}

// Tells the ranks that have a connection, and ends all of them. The others see
// the end of the group.
void Channel::carry_out_abort() {
  if (!abort_reason_) return;
  const std::string end =
      fmt::format("the group failed before: {}", *abort_reason_);
  if (!is_aborted_) {
    is_aborted_ = true;
    const std::string reason = abort_reason_->substr(0, kMaxReasonBytes);
    std::vector<std::byte> last(sizeof(Frame) + reason.size());
    const Frame frame{.kind = Frame::Kind::kFail, .bytes = reason.size()};
    std::memcpy(last.data(), &frame, sizeof frame);
    std::memcpy(last.data() + sizeof frame, reason.data(), reason.size());
    for (Outgoing& out : outgoing_) {
      size_t put = 0;
      if (out.socket.is_open() && !out.is_tried) out.socket.write(last, put);
      give_up(out);
    }
    strangers_.close();
    door_.listening.close();
  }
  end_all([&](const MessageOperation& operation) {
    return ended_by(end, operation, rank_);
  });
  for (Outgoing& out : outgoing_) {
    out.end = end;
    close(out);
  }
  for (Incoming& in : incoming_) {
    in.end = end;
    close(in);
  }
}

}  // namespace lockstep::tcp
