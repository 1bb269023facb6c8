#pragma once

#include <array>
#include <chrono>
#include <cstddef>
#include <cstdint>
#include <deque>
#include <list>
#include <memory>
#include <mutex>
#include <optional>
#include <span>
#include <string>
#include <thread>
#include <vector>

#include "lockstep/base/event_loop.h"
#include "lockstep/tcp/door.h"
#include "lockstep/tcp/message_operation.h"
#include "lockstep/tcp/strangers.h"
#include "lockstep/transport/transport.h"

namespace lockstep::tcp {

/// Sends and receives messages between the ranks of a group, as c10d does.
/// Messages from one rank to another with the same tag arrive in the order
/// sent. Messages with other tags may be received earlier. Any number of
/// operations can be in progress. Ranks that all send before they receive do
/// not deadlock, as long as no rank has more than kMaxUnexpected bytes of
/// another that it does not yet want.
///
/// Nothing is connected before the first message from one rank to another.
/// Then there is a connection for that direction. A thread of the channel does
/// what the caller's thread can't do at once, and calls `done` without holding
/// a lock.
///
/// A send is done when its bytes are on their way. An operation fails with
/// CommError if its peer ended, left or failed, or if it times out. A receive
/// also fails if its message has another size. After a send that timed out when
/// a part of it was sent, no more messages can be sent to that rank.
///
/// Several threads may use a channel. The destructor must not be called from
/// `done`. Operations that are pending then fail.
class Channel {
 public:
  using Milliseconds = std::chrono::milliseconds;
  static constexpr size_t kMaxUnexpected = size_t{256} << 20;

  /// `group` tells which ranks are gone, and must exist as long as the channel.
  /// Throws CommError if no thread can be started.
  Channel(int rank, int ranks, Door door, const transport::Peers& group);
  ~Channel();
  Channel(const Channel&) = delete;
  Channel& operator=(const Channel&) = delete;

  /// Sends a message. `data` must not change until `done` is called. Throws
  /// InvalidArgument if `to` is not one of the other ranks.
  void send(int to, int tag, std::span<const std::byte> data,
            Milliseconds timeout, MessageDone done);
  /// Receives a message: from a rank, or the first that arrives from any rank
  /// (kAnySource). Ranks that are gone make that fail only if all of them are.
  void receive(int from, int tag, std::span<std::byte> data,
               Milliseconds timeout, MessageDone done);
  /// Makes all operations of this rank fail with `reason`, and those of other
  /// ranks with this one.
  void abort(const std::string& reason) noexcept;

 private:
  using Clock = MessageOperation::Clock;
  using Time = Clock::time_point;
  using Lock = std::unique_lock<std::mutex>;

  struct Frame {
    enum class Kind : uint32_t { kMessage = 1, kFail = 2 };
    Kind kind = Kind::kMessage;
    int32_t tag = 0;
    uint64_t bytes = 0;  // that follow
  };
  struct Send {
    MessageOperation operation;
    std::span<const std::byte> data;
    size_t sent = 0;  // of the frame and the data
  };
  struct Receive {
    MessageOperation operation;
    std::span<std::byte> data;
  };
  /// A message that no receive wanted when it began to arrive.
  struct Message {
    int source = 0;
    int tag = 0;
    std::unique_ptr<std::byte[]> data;
    size_t bytes = 0;
  };
  struct Finished {
    MessageOperation operation;
    int source;
    std::exception_ptr error;
  };

  /// One direction between this rank and another.
  struct Line {
    store::SecureSocket socket;
    uint32_t ready = 0;  // events of epoll; used by the thread only
    bool is_closed = false;
    int looks = 0;    // number of looks that found it closed, or the rank gone
    std::string end;  // why no message can pass any more; empty: it can
  };
  struct Outgoing : Line {
    std::optional<Handshake> handshake;
    Time connect_at{};  // not before that
    std::deque<Send> sends;
    // The frame of the first send and the beginning of its data, so that a
    // small message is sent at once.
    std::array<std::byte, 4096> head;
    size_t head_bytes = 0;
    bool is_tried = false;  // whether the socket may have a part of it
  };
  struct Incoming : Line {
    Frame frame;
    size_t frame_got = 0;
    bool is_matched = false;  // false while nobody can take the frame's data
    size_t got = 0;           // of the data
    std::optional<Receive> receive;  // into which the data go, or
    std::optional<Message> message;  // where they are kept, or neither
    size_t kept = 0;                 // bytes of messages that nobody wants
    bool is_drained = false;
    bool has_more = false;  // has bytes that epoll may not report

    /// Returns whether a frame waits for somebody to take its data.
    bool is_held_up() const {
      return frame_got == sizeof(Frame) && !is_matched;
    }
    bool is_ready() const { return socket.is_open() && !is_held_up(); }
  };
  Outgoing& to(int peer) { return outgoing_[static_cast<size_t>(peer)]; }
  Incoming& from(int peer) { return incoming_[static_cast<size_t>(peer)]; }

  // All functions below, except for run() and the three after it, are called
  // with the lock. Only the thread opens and closes connections.
  void run();
  Time prepare();
  void join(int peer, store::SecureSocket socket);
  void finish(Lock& lock);
  void connect(int peer);
  void advance(int peer);
  void give_up(Outgoing& out);
  /// Returns false if the connection is broken.
  bool flush(int peer);
  void read(int peer);
  /// Reads into `bytes`. Returns whether any arrived.
  bool read_some(Incoming& in, std::span<std::byte> bytes, size_t& got);
  void read_frame(int peer);
  void read_data(int peer);
  std::list<Receive>::iterator receive_of(int source, int tag);
  void match(int peer);
  void end_message(int peer);
  bool deliver(Message& message);
  void close(Line& line);
  void look_for_ends();
  void look_at(Line& line, int peer);
  void end_late();
  void end_all(const std::function<std::exception_ptr(const MessageOperation&)>&
                   error_of);
  void carry_out_abort();
  std::string whereabouts(int peer) const;
  bool is_awaited(int peer) const;
  std::string end_of_receive(int peer) const;
  void end(MessageOperation& operation, int source, std::exception_ptr error);

  const int rank_;
  const int ranks_;
  const transport::Peers& group_;
  Door door_;
  EventLoop events_;
  Strangers strangers_;  // used by the thread only

  std::mutex mutex_;                // guards all members below
  std::vector<Outgoing> outgoing_;  // by rank
  std::vector<Incoming> incoming_;  // by rank
  std::list<Receive> receives_;     // without a message, in order
  std::list<Message> messages_;     // without a receive, as they arrived
  std::vector<Finished> finished_;  // whose `done` is to be called
  Time look_at_{};                  // when to look for ends again
  Time sleeps_until_{};             // of the thread, if nothing wakes it
  std::optional<std::string> abort_reason_;
  bool is_aborted_ = false;
  std::thread thread_;
};

}  // namespace lockstep::tcp
