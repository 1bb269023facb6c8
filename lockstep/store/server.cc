#include "lockstep/store/server.h"

#include <algorithm>
#include <array>
#include <cerrno>
#include <cstring>
#include <fcntl.h>
#include <map>
#include <memory>
#include <mutex>
#include <set>
#include <span>
#include <string>
#include <sys/epoll.h>
#include <sys/eventfd.h>
#include <sys/resource.h>
#include <sys/socket.h>
#include <thread>
#include <utility>
#include <vector>

#include "lockstep/base/error.h"
#include "lockstep/store/keeper.h"
#include "lockstep/store/peer.h"
#include "lockstep/store/refusal_log.h"

namespace lockstep::store {
namespace {

using std::chrono::milliseconds;

constexpr size_t kFilesForOthers = 128;
// Beyond all connections: a listener's number, counted from here.
constexpr uint64_t kListeners = uint64_t{1} << 62;
constexpr uint64_t kStop = kListeners - 1;

void watch(int epoll, int operation, int fd, uint32_t events, uint64_t number) {
  epoll_event event{};
  event.events = events;
  event.data.u64 = number;
  if (::epoll_ctl(epoll, operation, fd, &event) != 0) {
    throw CommError({.code = ErrorCode::kStoreUnreachable,
                     .what = "the store can't watch a connection",
                     .got = std::strerror(errno)});
  }
}

// No more connections than there may be files.
size_t connections_of(const ServerOptions& options) {
  rlimit files{};
  ::getrlimit(RLIMIT_NOFILE, &files);
  const size_t most = files.rlim_cur > 2 * kFilesForOthers
                          ? files.rlim_cur - kFilesForOthers
                          : kFilesForOthers;
  return std::min(options.most_connections, most);
}

FileDescriptor spare_file() {
  return FileDescriptor(::open("/dev/null", O_RDONLY | O_CLOEXEC));
}

}  // namespace

// The thread of a server: takes connections, leads them through the handshake,
// answers requests, and closes who is late. One request of a connection is
// answered before the next is read, so that none can take more memory than a
// request and a reply.
class Server::Loop {
 public:
  Loop(const ServerOptions& options, std::vector<FileDescriptor> listeners);
  ~Loop();
  void begin_round(int round, int world_size);

 private:
  using Number = uint64_t;  // of a connection; they are never used again
  using Time = Peer::Time;

  void run();
  int timeout_ms(Time now) const;
  void accept_some(int listener, Time now);
  void close_oldest_stranger(const std::string& why);
  void on_event(Number number, uint32_t events, Time now);
  // All that is there. Throws CommError: the connection is to be closed.
  void read_requests(Number number, Peer& peer, Time now);
  void on_frame(Number number, Peer& peer, const std::string& body, Time now);
  void on_hello(Peer& peer, const std::string& body);
  void on_proof(Number number, Peer& peer, const std::string& body);
  void on_request(Number number, Peer& peer, const Request& request, Time now);
  // Those that wait, and may have got what they wait for.
  void wake_waiters();
  void end_wait(Number number, Peer& peer, const Reply& reply);
  void close_late(Time now);
  void close_stale_workers();
  // Writes what can be written, and has epoll watch for what comes next.
  void attend(Number number, Peer& peer);
  void refuse(Number number, const std::string& why);
  void close(Number number);

  const ServerOptions options_;
  std::vector<FileDescriptor> listeners_;
  FileDescriptor epoll_, stop_;
  // To be given up when there are no descriptors left: a connection can be
  // closed only after it was accepted.
  FileDescriptor spare_;

  std::mutex mutex_;  // of all below
  Keeper keeper_;
  Number next_number_ = 0;
  std::map<Number, std::unique_ptr<Peer>> peers_;
  std::set<Number> strangers_;  // the oldest first
  std::set<std::pair<Time, Number>> waiters_;
  bool is_will_done_ = false;  // those that wait don't know yet
  RefusalLog refusals_;
  std::thread thread_;
};

Server::Loop::Loop(const ServerOptions& options,
                   std::vector<FileDescriptor> listeners)
    : options_(options),
      listeners_(std::move(listeners)),
      epoll_(::epoll_create1(EPOLL_CLOEXEC)),
      stop_(::eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK)),
      spare_(spare_file()),
      keeper_(options.run_id, connections_of(options), options.limits) {
  watch(epoll_.get(), EPOLL_CTL_ADD, stop_.get(), EPOLLIN, kStop);
  for (size_t i = 0; i < listeners_.size(); ++i) {
    watch(epoll_.get(), EPOLL_CTL_ADD, listeners_[i].get(), EPOLLIN,
          kListeners + i);
  }
  thread_ = std::thread([this] { run(); });
}

Server::Loop::~Loop() {
  const uint64_t one = 1;
  [[maybe_unused]] const auto put = ::write(stop_.get(), &one, sizeof one);
  thread_.join();
}

void Server::Loop::begin_round(int round, int world_size) {
  const std::lock_guard lock(mutex_);
  if (keeper_.begin_round(round, world_size)) close_stale_workers();
}

void Server::Loop::run() {
  std::array<epoll_event, 64> events;
  for (;;) {
    int wait_ms = 0;
    {
      const std::lock_guard lock(mutex_);
      wait_ms = timeout_ms(std::chrono::steady_clock::now());
    }
    const int count =
        ::epoll_wait(epoll_.get(), events.data(), events.size(), wait_ms);
    const auto now = std::chrono::steady_clock::now();
    const std::lock_guard lock(mutex_);
    try {
      const std::span happened(events.data(),
                               count > 0 ? static_cast<size_t>(count) : 0);
      for (const auto& event : happened) {
        const Number number = event.data.u64;
        if (number == kStop) return;
        if (number < kListeners) on_event(number, event.events, now);
      }
      // Then: new connections may close others, which should be heard before.
      for (const auto& event : happened) {
        const Number number = event.data.u64;
        if (number < kListeners) continue;
        accept_some(listeners_[number - kListeners].get(), now);
      }
      close_late(now);
      if (std::exchange(is_will_done_, false)) wake_waiters();
    } catch (const std::exception& error) {
      // Out of memory, say: who comes later may have more luck.
      refusals_.add("a connection", reason_of(error));
    }
  }
}

int Server::Loop::timeout_ms(Time now) const {
  Time next = Time::max();
  if (!strangers_.empty()) {
    next = peers_.at(*strangers_.begin())->since() + options_.handshake_time;
  }
  if (!waiters_.empty()) next = std::min(next, waiters_.begin()->first);
  if (next == Time::max()) return -1;
  // Not a little too early, which would be a round for nothing.
  const auto left = std::chrono::ceil<milliseconds>(next - now).count();
  return static_cast<int>(std::clamp<int64_t>(left, 0, 60'000));
}

void Server::Loop::accept_some(int listener, Time now) {
  // No more than leaves those before them a few turns.
  const size_t most =
      std::max<size_t>(1, options_.most_strangers / (4 * listeners_.size()));
  for (size_t i = 0; i < most; ++i) {
    FileDescriptor socket(
        ::accept4(listener, nullptr, nullptr, SOCK_CLOEXEC | SOCK_NONBLOCK));
    if (!socket.is_open()) {
      if (errno != EMFILE && errno != ENFILE) return;
      spare_.close();
      FileDescriptor(::accept4(listener, nullptr, nullptr, SOCK_CLOEXEC))
          .close();
      spare_ = spare_file();
      close_oldest_stranger("there are no files left");
      return;
    }
    if (strangers_.size() >= options_.most_strangers) {
      close_oldest_stranger("too many connections without a handshake");
    }
    const Number number = next_number_++;
    auto peer = std::make_unique<Peer>(std::move(socket), now);
    peer->watched_events = EPOLLIN | EPOLLRDHUP;
    watch(epoll_.get(), EPOLL_CTL_ADD, peer->fd(), peer->watched_events,
          number);
    peers_.emplace(number, std::move(peer));
    strangers_.insert(number);
  }
}

void Server::Loop::close_oldest_stranger(const std::string& why) {
  if (!strangers_.empty()) refuse(*strangers_.begin(), why);
}

void Server::Loop::on_event(Number number, uint32_t events, Time now) {
  const auto found = peers_.find(number);
  if (found == peers_.end()) return;  // closed in this turn
  Peer& peer = *found->second;
  try {
    if ((events & EPOLLOUT) != 0 && !peer.write_some()) return close(number);
    if ((events & EPOLLIN) != 0) {
      if (!peer.read_some()) return close(number);
      read_requests(number, peer, now);
    } else if ((events & (EPOLLHUP | EPOLLERR | EPOLLRDHUP)) != 0) {
      return close(number);
    }
    attend(number, peer);
  } catch (const std::exception& error) {
    refuse(number, reason_of(error));
  }
}

void Server::Loop::attend(Number number, Peer& peer) {
  if (!peer.write_some()) return close(number);
  if (peer.stage == Peer::Stage::kLeaving && !peer.has_output()) {
    return close(number);
  }
  // While it waits, or doesn't take its reply, nothing more is read of it; that
  // it is gone is noticed.
  uint32_t events = EPOLLRDHUP;
  if (peer.has_output()) {
    events |= EPOLLOUT;
  } else if (!peer.waiting) {
    events |= EPOLLIN;
  }
  if (events == peer.watched_events) return;
  peer.watched_events = events;
  watch(epoll_.get(), EPOLL_CTL_MOD, peer.fd(), events, number);
}

void Server::Loop::close_late(Time now) {
  while (!strangers_.empty() &&
         peers_.at(*strangers_.begin())->since() + options_.handshake_time <=
             now) {
    refuse(*strangers_.begin(), "no handshake in time");
  }
  while (!waiters_.empty() && waiters_.begin()->first <= now) {
    const Number number = waiters_.begin()->second;
    end_wait(number, *peers_.at(number), {.status = Status::kTimeout});
  }
}

void Server::Loop::close_stale_workers() {
  std::vector<Number> stale;
  for (const auto& [number, peer] : peers_) {
    const bool is_in = peer->stage == Peer::Stage::kOpen;
    if (is_in && keeper_.door.is_stale(peer->who)) stale.push_back(number);
  }
  for (const Number number : stale) close(number);
}

void Server::Loop::refuse(Number number, const std::string& why) {
  const Peer& peer = *peers_.at(number);
  refusals_.add(peer.stage == Peer::Stage::kOpen
                    ? peer.who.text() + " at " + peer.address()
                    : peer.address(),
                why);
  close(number);
}

void Server::Loop::close(Number number) {
  const auto found = peers_.find(number);
  Peer& peer = *found->second;
  if (peer.waiting) waiters_.erase({peer.deadline, number});
  if (peer.stage == Peer::Stage::kOpen && keeper_.leave(peer.who)) {
    is_will_done_ = true;
  }
  strangers_.erase(number);
  peers_.erase(found);
}

void Server::Loop::read_requests(Number number, Peer& peer, Time now) {
  std::string body;
  while (peer.stage != Peer::Stage::kLeaving && !peer.waiting &&
         !peer.has_output() && peer.next_frame(body)) {
    on_frame(number, peer, body, now);
    if (!peer.write_some()) {
      throw CommError(
          {.code = ErrorCode::kStoreUnreachable, .what = "it is gone"});
    }
  }
}

void Server::Loop::on_frame(Number number, Peer& peer, const std::string& body,
                            Time now) {
  switch (peer.stage) {
    case Peer::Stage::kHello:
      return on_hello(peer, body);
    case Peer::Stage::kProof:
      return on_proof(number, peer, body);
    case Peer::Stage::kOpen:
      return on_request(
          number, peer,
          decode_request(peer.session->open(body), options_.limits), now);
    case Peer::Stage::kLeaving:
      return;
  }
}

void Server::Loop::on_hello(Peer& peer, const std::string& body) {
  const Hello hello = decode_hello(body);
  const std::string challenge = encode(Challenge{.nonce = random_nonce()});
  peer.put_frame(challenge);
  if (hello.version != kProtocolVersion) {
    // It reads in the challenge which version is spoken here.
    peer.stage = Peer::Stage::kLeaving;
    return;
  }
  peer.who = hello.identity;
  peer.handshake.emplace(options_.secret.key_of(peer.who), body, challenge);
  peer.stage = Peer::Stage::kProof;
}

void Server::Loop::on_proof(Number number, Peer& peer,
                            const std::string& body) {
  if (!peer.handshake->is_proof(body)) {
    refusals_.add(peer.address(), "it does not know the job's secret");
    peer.put_frame(encode_wrong_proof());
    peer.stage = Peer::Stage::kLeaving;
    return;
  }
  const Verdict verdict = keeper_.admit(peer.who);
  peer.put_frame(peer.handshake->encode(verdict));
  if (verdict.admission != Admission::kWelcome) {
    refusals_.add(peer.who.text() + " at " + peer.address(), verdict.reason);
    peer.stage = Peer::Stage::kLeaving;
    return;
  }
  peer.session = peer.handshake->server_session();
  peer.set_most_bytes(options_.limits.message_bytes());
  peer.stage = Peer::Stage::kOpen;
  strangers_.erase(number);
}

void Server::Loop::on_request(Number number, Peer& peer, const Request& request,
                              Time now) {
  const bool may_wait = request.operation == Operation::kGet ||
                        request.operation == Operation::kWait;
  if (may_wait && !keeper_.has_all(peer.who, request)) {
    if (request.wait_ms == 0) {
      return peer.put_reply({.status = Status::kTimeout});
    }
    peer.waiting = request;
    peer.deadline = now + std::chrono::milliseconds(request.wait_ms);
    waiters_.insert({peer.deadline, number});
    return;
  }
  peer.put_reply(keeper_.answer(peer.who, request));
  switch (request.operation) {
    case Operation::kBeginRound:
      return close_stale_workers();
    case Operation::kSet:
    case Operation::kAdd:
    case Operation::kCompareSet:
      return wake_waiters();
    default:
      return;
  }
}

void Server::Loop::wake_waiters() {
  std::vector<Number> ready;
  for (const auto& [deadline, number] : waiters_) {
    const Peer& peer = *peers_.at(number);
    if (keeper_.has_all(peer.who, *peer.waiting)) ready.push_back(number);
  }
  for (const Number number : ready) {
    Peer& peer = *peers_.at(number);
    end_wait(number, peer, keeper_.answer(peer.who, *peer.waiting));
  }
}

void Server::Loop::end_wait(Number number, Peer& peer, const Reply& reply) {
  waiters_.erase({peer.deadline, number});
  peer.waiting.reset();
  peer.put_reply(reply);
  attend(number, peer);
}

Server::Server(const ServerOptions& options,
               std::vector<FileDescriptor> listeners)
    : loop_(std::make_unique<Loop>(options, std::move(listeners))) {}

Server::~Server() = default;

void Server::begin_round(int round, int world_size) {
  loop_->begin_round(round, world_size);
}

}  // namespace lockstep::store
