#include "lockstep/store/client.h"

#include <algorithm>
#include <array>
#include <poll.h>
#include <span>
#include <sys/socket.h>
#include <thread>
#include <utility>

#include <fmt/format.h>

#include "lockstep/base/error.h"
#include "lockstep/base/event_loop.h"
#include "lockstep/base/file_descriptor.h"
#include "lockstep/base/out_of_resources.h"
#include "lockstep/store/secure_socket.h"
#include "lockstep/store/socket_address.h"
#include "lockstep/store/wire.h"

namespace lockstep::store {
namespace {

using Clock = std::chrono::steady_clock;
using std::chrono::milliseconds;

// Longest time of one attempt to connect. In a network that loses packets, a
// new connection gets through sooner than the next packet of an old one.
constexpr milliseconds kHandshakeTime{5000};
// Time without an answer after which a request is repeated over a new
// connection. Doubled each time, so that a slow server can answer.
constexpr milliseconds kRepeatTime{2000};
// Longest wait that the server is asked for at once. Its answer shows that the
// connection still works.
constexpr milliseconds kWaitTime{2000};
constexpr milliseconds kPause{20};

uint32_t wait_ms(milliseconds time) {
  return static_cast<uint32_t>(
      std::clamp<int64_t>(time.count(), 0, INT32_MAX / 2));
}

// A connection that the other end closed, or that broke.
class Disconnected : public CommError {
 public:
  using CommError::CommError;
};

// An answer that did not come in time.
class TimedOut : public CommError {
 public:
  using CommError::CommError;
};

// Throws RequestRefused if the server would not be able to read the request. It
// would close the connection, and the request would be repeated for nothing.
void check(const Request& request) {
  try {
    decode_request(encode(request), Limits());
  } catch (const CommError& error) {
    throw RequestRefused({.code = ErrorCode::kStoreRefused,
                          .what = "the job's store can't take a request",
                          .got = text_of(error)});
  }
}

}  // namespace

// The client's end of one connection. One thread may use it at a time. It can't
// be used after an exception.
class Client::Link {
 public:
  // Does the handshake over `socket`. Throws Refused, Disconnected, TimedOut,
  // or CommError if the other end has another secret or is not a store.
  Link(FileDescriptor socket, const ClientOptions& options,
       const Token& channel, Time deadline);

  // Sends a request and returns the reply. Throws TimedOut if it does not come
  // in time.
  Reply ask(const Request& request, Time deadline);
  // Returns false if the server has closed the connection.
  bool is_alive() const;
  std::string own_host() const {
    return SocketAddress::from_socket(socket_.fd()).host();
  }
  SocketAddress address() const {
    return SocketAddress::from_peer(socket_.fd());
  }
  const Token& incarnation() const { return incarnation_; }

 private:
  void send(const std::string& body, Time deadline);
  std::string receive(Time deadline);
  // Waits until a call on the socket that had this outcome can be repeated.
  // Throws if it can't.
  void wait_after(SecureSocket::Outcome outcome, Time deadline) const;

  SecureSocket socket_;
  FrameReader in_{kMaxHelloBytes};
  Token incarnation_{};
  const Limits limits_{};
};

// A sequence of requests, over one connection after another. One thread may use
// it at a time.
struct Client::Channel {
  const Token id = random_token();
  uint64_t requests = 0;
  std::unique_ptr<Link> link;  // null: not connected
};

Client::Link::Link(FileDescriptor socket, const ClientOptions& options,
                   const Token& channel, Time deadline)
    : socket_(SecureSocket::client(std::move(socket), options.who.key_name(),
                                   options.key)) {
  const Identity& who = options.who;
  for (;;) {
    const auto outcome = socket_.shake_hands();
    if (outcome == SecureSocket::Outcome::kDone) break;
    if (outcome == SecureSocket::Outcome::kRefused) {
      throw CommError(
          {.code = ErrorCode::kBadSecret,
           .what = "the store at " + address().text() + " and " + who.text() +
                   " know different secrets",
           .expected = "a server with the job's secret",
           .got = "one with another secret, or none",
           .fix = "give the same --secret-file (LOCKSTEP_SECRET_FILE) to all; "
                  "is another job or program at this port?"});
    }
    wait_after(outcome, deadline);
  }
  send(encode(Hello{.identity = who, .channel = channel}), deadline);
  const AdmissionReply reply = decode_admission_reply(receive(deadline));
  if (reply.admission != Admission::kWelcome) {
    const bool is_other = reply.admission == Admission::kOtherVersion;
    throw Refused(
        reply.admission,
        {.code = ErrorCode::kStoreRefused,
         .what = "the job's store refused " + who.text(),
         .got = reply.reason,
         .fix =
             is_other ? "use the same version of Lockstep on all nodes" : ""});
  }
  incarnation_ = reply.incarnation;
  in_.set_most(limits_.message_bytes());
}

Reply Client::Link::ask(const Request& request, Time deadline) {
  send(encode(request), deadline);
  return decode_reply(receive(deadline), limits_);
}

bool Client::Link::is_alive() const {
  return !wait_for(socket_.fd(), POLLIN | POLLRDHUP, /*deadline=*/{});
}

void Client::Link::send(const std::string& body, Time deadline) {
  const std::string frame = framed(body);
  auto rest = std::as_bytes(std::span(frame));
  while (!rest.empty()) {
    size_t put = 0;
    const auto outcome = socket_.write(rest, put);
    if (outcome == SecureSocket::Outcome::kDone) {
      rest = rest.subspan(put);
    } else {
      wait_after(outcome, deadline);
    }
  }
}

std::string Client::Link::receive(Time deadline) {
  std::array<std::byte, SecureSocket::kRecordBytes> buffer;
  std::string body;
  while (!in_.next(body)) {
    size_t got = 0;
    const auto outcome = socket_.read(buffer, got);
    if (outcome == SecureSocket::Outcome::kDone) {
      in_.add({reinterpret_cast<const char*>(buffer.data()), got});
    } else {
      wait_after(outcome, deadline);
    }
  }
  return body;
}

void Client::Link::wait_after(SecureSocket::Outcome outcome,
                              Time deadline) const {
  if (outcome == SecureSocket::Outcome::kClosed) {
    throw Disconnected({.code = ErrorCode::kStoreUnreachable,
                        .what = "the store closed the connection"});
  }
  if (outcome == SecureSocket::Outcome::kRefused) {
    throw CommError({.code = ErrorCode::kStoreProtocol,
                     .what = "bytes on a connection of the store are not what "
                             "the server sent",
                     .got = "altered, repeated or injected ones"});
  }
  const bool is_write = outcome == SecureSocket::Outcome::kWantsWrite;
  if (!wait_for(socket_.fd(), is_write ? POLLOUT : POLLIN, deadline)) {
    // The connection is reset when it is closed. The server takes an orderly
    // end for the end of this process.
    const linger reset{.l_onoff = 1, .l_linger = 0};
    ::setsockopt(socket_.fd(), SOL_SOCKET, SO_LINGER, &reset, sizeof reset);
    throw TimedOut({.code = ErrorCode::kStoreUnreachable,
                    .what = "the store did not answer in time"});
  }
}

Client::Client(ClientOptions options) : options_(std::move(options)) {
  auto channel = std::make_unique<Channel>();
  channel->link = connect(channel->id, Clock::now() + options_.connect_time);
  own_host_ = channel->link->own_host();
  address_ = channel->link->address();
  options_.who.incarnation = channel->link->incarnation();
  idle_.push_back(std::move(channel));
}

Client::~Client() = default;

std::unique_ptr<Client::Link> Client::connect(const Token& channel,
                                              Time deadline) const {
  std::string problem = "nobody listens";
  std::optional<CommError> wrong;
  do {
    // A server keeps its address, and a name server may not answer now.
    for (const auto& address : address_
                                   ? std::vector{*address_}
                                   : resolve(options_.host, options_.port)) {
      const auto attempt_deadline =
          std::min(deadline, Clock::now() + kHandshakeTime);
      FileDescriptor socket = connect_to(address, attempt_deadline);
      if (!socket.is_open()) continue;
      try {
        return std::make_unique<Link>(std::move(socket), options_, channel,
                                      attempt_deadline);
      } catch (const Disconnected& error) {
        // A server that is flooded with connections may close any of them.
        problem = text_of(error);
      } catch (const TimedOut& error) {
        problem = text_of(error);
      } catch (const Refused&) {
        throw;
      } catch (const CommError& error) {
        wrong = error;  // another address of this name may be right
      }
    }
    if (wrong) throw CommError(*wrong);
    if (Clock::now() < deadline) std::this_thread::sleep_for(kPause);
  } while (Clock::now() < deadline);
  check_descriptors("comm", "can't connect to the job's store");
  throw Unreachable(
      {.code = ErrorCode::kStoreUnreachable,
       .what = fmt::format("can't reach the job's store at {} port "
                           "{}",
                           options_.host, options_.port),
       .got = problem,
       .fix = "check that its server runs, its address, and that it is of the "
              "same version of Lockstep"});
}

std::unique_ptr<Client::Channel> Client::take() {
  const std::lock_guard lock(mutex_);
  while (!idle_.empty()) {
    auto channel = std::move(idle_.back());
    idle_.pop_back();
    if (channel->link && channel->link->is_alive()) return channel;
  }
  return std::make_unique<Channel>();
}

// Sends a request until it is answered. Throws Unreachable at the deadline.
Reply Client::exchange(Channel& channel, Request request) const {
  request.id = ++channel.requests;
  const milliseconds wait(request.wait_ms);
  const auto deadline = Clock::now() + wait + options_.answer_time;
  for (milliseconds late = kRepeatTime;; late *= 2) {
    if (!channel.link) channel.link = connect(channel.id, deadline);
    std::string problem;
    try {
      return channel.link->ask(request,
                               std::min(deadline, Clock::now() + wait + late));
    } catch (const CommError& error) {
      problem = text_of(error);
    }
    channel.link.reset();
    if (Clock::now() >= deadline) {
      throw Unreachable(
          {.code = ErrorCode::kStoreUnreachable,
           .what = fmt::format("the job's store at {} port {} does not answer",
                               options_.host, options_.port),
           .expected = fmt::format(
               "an answer within {:g} s",
               static_cast<double>(options_.answer_time.count()) / 1e3),
           .got = problem});
    }
    std::this_thread::sleep_for(kPause);
  }
}

Reply Client::ask(const Request& request) {
  check(request);
  auto channel = take();
  const auto end = Clock::now() + milliseconds(request.wait_ms);
  Reply reply;
  for (Request part = request;;) {
    const auto left = std::chrono::ceil<milliseconds>(end - Clock::now());
    part.wait_ms = wait_ms(std::min(left, kWaitTime));
    reply = exchange(*channel, part);
    if (reply.status != Status::kTimeout || Clock::now() >= end) break;
  }
  {
    // The connection is kept even after a refusal. A process without one counts
    // as gone.
    const std::lock_guard lock(mutex_);
    idle_.push_back(std::move(channel));
  }
  if (reply.status == Status::kRefused) {
    throw RequestRefused({.code = ErrorCode::kStoreRefused,
                          .what = "the job's store refused a request",
                          .got = reply.value});
  }
  return reply;
}

void Client::set(const std::string& key, const std::string& value) {
  ask({.operation = Operation::kSet, .keys = {key}, .value = value});
}

std::optional<std::string> Client::get(const std::string& key,
                                       Milliseconds wait) {
  Reply reply = ask(
      {.operation = Operation::kGet, .keys = {key}, .wait_ms = wait_ms(wait)});
  if (reply.status == Status::kTimeout) return std::nullopt;
  return std::move(reply.value);
}

int64_t Client::add(const std::string& key, int64_t value) {
  return ask({.operation = Operation::kAdd, .keys = {key}, .number = value})
      .number;
}

std::string Client::compare_set(const std::string& key,
                                const std::string& expected,
                                const std::string& value) {
  return ask({.operation = Operation::kCompareSet,
              .keys = {key},
              .value = value,
              .expected = expected})
      .value;
}

bool Client::has(const std::vector<std::string>& keys) {
  return ask({.operation = Operation::kCheck, .keys = keys}).number != 0;
}

bool Client::wait(const std::vector<std::string>& keys, Milliseconds time) {
  return ask({.operation = Operation::kWait,
              .keys = keys,
              .wait_ms = wait_ms(time)})
             .status == Status::kDone;
}

bool Client::erase(const std::string& key) {
  return ask({.operation = Operation::kErase, .keys = {key}}).number != 0;
}

int64_t Client::count() { return ask({.operation = Operation::kCount}).number; }

void Client::begin_round(int round, int world_size) {
  ask({.operation = Operation::kBeginRound,
       .value = std::to_string(world_size),
       .number = round});
}

void Client::set_last_will(const std::string& key, const std::string& value) {
  ask({.operation = Operation::kSetLastWill, .keys = {key}, .value = value});
}

}  // namespace lockstep::store
