#include "lockstep/store/server.h"

#include <algorithm>
#include <cerrno>
#include <fcntl.h>
#include <future>
#include <map>
#include <memory>
#include <mutex>
#include <set>
#include <string>
#include <sys/epoll.h>
#include <sys/resource.h>
#include <sys/socket.h>
#include <thread>
#include <utility>
#include <vector>

#include <fmt/format.h>

#include "lockstep/base/error.h"
#include "lockstep/base/event_loop.h"
#include "lockstep/base/format.h"
#include "lockstep/base/log.h"
#include "lockstep/base/printable.h"
#include "lockstep/store/store_connection.h"
#include "lockstep/store/store_service.h"

namespace lockstep::store {
namespace {

constexpr size_t kFilesForOthers = 128;

// Returns the limit on connections. It takes into account how many files this
// process may open.
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

// Logs which clients were refused and why. Writes the first line at once and
// then at most one line in ten seconds, so that a flood of connections does not
// flood the log.
class RefusalLog {
 public:
  void add(const std::string& peer, const std::string& why) {
    constexpr std::chrono::seconds kEvery{10};
    const auto now = std::chrono::steady_clock::now();
    if (last_.time_since_epoch().count() != 0 && now - last_ < kEvery) {
      ++untold_;
      return;
    }
    const std::string others =
        untold_ == 0
            ? ""
            : fmt::format(" ({} before)",
                          counted(static_cast<int64_t>(untold_), "other"));
    log_warning("comm", fmt::format("the job's store refused {}: {}{}", peer,
                                    why, others));
    last_ = now;
    untold_ = 0;
  }

 private:
  std::chrono::steady_clock::time_point last_{};
  size_t untold_ = 0;
};

}  // namespace

// The thread of a server. It accepts connections, does the handshake, answers
// requests, and closes connections that are late. A request is answered before
// the next one of the same connection is read, so no connection takes more
// memory than a request and a reply.
class Server::Loop {
 public:
  Loop(const ServerOptions& options, std::vector<FileDescriptor> listeners);
  ~Loop();
  void begin_round(int round, int world_size);

 private:
  using Number = Connection::Number;
  using Time = Connection::Time;

  void run();
  // Returns when something is due that does not depend on a connection.
  Time next_deadline() const;
  void carry_out_orders();
  void accept_some(int listener, Time now);
  void close_oldest_unauthenticated(const std::string& why);
  void on_event(Number number, uint32_t events);
  // Handles all requests that have arrived. If it throws, the connection is
  // closed.
  void read_requests(Connection& connection, Time now);
  void on_frame(Connection& connection, const std::string& body, Time now);
  void on_hello(Connection& connection, const std::string& body);
  AdmissionReply admit(Connection& connection, const Hello& hello);
  void on_request(Connection& connection, const Request& request, Time now);
  // Closes the connection that the same channel had before.
  void close_former(const Connection& connection);
  // Answers the waiting requests for keys that are now set.
  void wake_waiters();
  void end_wait(Connection& connection, const Reply& reply);
  void close_late(Time now);
  void carry_out_last_wills(Time now);
  void close_stale_workers();
  // Writes as much as possible, and sets the events to wait for.
  void attend(Connection& connection);
  void refuse(Number number, const std::string& why);
  // `is_end`: the other end closed the connection, and the network did not
  // break it.
  void close(Number number, bool is_end = false);

  const ServerOptions options_;
  std::vector<FileDescriptor> listeners_;
  // Closed when this process has no descriptors left, because a connection must
  // be accepted before it can be refused.
  FileDescriptor spare_;

  std::mutex mutex_;                                // guards orders_
  std::vector<std::packaged_task<void()>> orders_;  // from other threads

  // Used by the thread only.
  EventLoop events_;
  std::vector<int> arrivals_;  // listeners at which connections wait
  StoreService service_;
  Number next_number_ = 0;
  std::map<Number, std::unique_ptr<Connection>> connections_;
  std::set<Number> unauthenticated_;  // oldest first
  std::set<std::pair<Time, Number>> waiters_;
  // Agents with a last will that have no connection, and when it is carried
  // out.
  std::map<Token, Time> absent_;
  RefusalLog refusals_;
  std::thread thread_;
};

Server::Loop::Loop(const ServerOptions& options,
                   std::vector<FileDescriptor> listeners)
    : options_(options),
      listeners_(std::move(listeners)),
      spare_(spare_file()),
      service_(options.run_id, connections_of(options), options.limits) {
  for (const FileDescriptor& listener : listeners_) {
    events_.add(listener.get(), EPOLLIN, [this, &listener](uint32_t) {
      arrivals_.push_back(listener.get());
    });
  }
  thread_ = std::thread([this] { run(); });
}

Server::Loop::~Loop() {
  events_.stop();
  thread_.join();
}

void Server::Loop::begin_round(int round, int world_size) {
  std::packaged_task<void()> order([=, this] {
    if (service_.begin_round(round, world_size)) close_stale_workers();
  });
  auto done = order.get_future();
  {
    const std::lock_guard lock(mutex_);
    orders_.push_back(std::move(order));
  }
  events_.wake();
  done.get();
}

void Server::Loop::run() {
  for (bool goes_on = true; goes_on;) {
    try {
      arrivals_.clear();
      goes_on = events_.run_once(next_deadline());
      carry_out_orders();
      const auto now = std::chrono::steady_clock::now();
      // Listeners come last. A new connection may close an old one, and the
      // events of the old one should be handled first.
      for (const int listener : arrivals_) accept_some(listener, now);
      close_late(now);
      carry_out_last_wills(now);
    } catch (const std::exception& error) {
      // The server goes on after a failure, such as lack of memory.
      refusals_.add("a connection", text_of(error));
    }
  }
}

Server::Loop::Time Server::Loop::next_deadline() const {
  Time next = Time::max();
  if (!unauthenticated_.empty()) {
    next = connections_.at(*unauthenticated_.begin())->since() +
           options_.handshake_time;
  }
  if (!waiters_.empty()) next = std::min(next, waiters_.begin()->first);
  for (const auto& [agent, due] : absent_) next = std::min(next, due);
  return next;
}

void Server::Loop::carry_out_orders() {
  std::vector<std::packaged_task<void()>> orders;
  {
    const std::lock_guard lock(mutex_);
    orders.swap(orders_);
  }
  for (auto& order : orders) order();
}

void Server::Loop::accept_some(int listener, Time now) {
  // Accepts only a few at a time, so that older connections get several turns
  // before they are closed.
  const size_t most = std::max<size_t>(
      1, options_.most_unauthenticated / (4 * listeners_.size()));
  for (size_t i = 0; i < most; ++i) {
    FileDescriptor socket(
        ::accept4(listener, nullptr, nullptr, SOCK_CLOEXEC | SOCK_NONBLOCK));
    if (!socket.is_open()) {
      if (errno != EMFILE && errno != ENFILE) return;
      spare_.close();
      FileDescriptor(::accept4(listener, nullptr, nullptr, SOCK_CLOEXEC))
          .close();
      spare_ = spare_file();
      close_oldest_unauthenticated("there are no files left");
      return;
    }
    if (unauthenticated_.size() >= options_.most_unauthenticated) {
      close_oldest_unauthenticated("too many connections without a handshake");
    }
    const Number number = next_number_++;
    const auto find_key = [this](std::string_view name) {
      return options_.secret.key_named(name);
    };
    auto connection =
        std::make_unique<Connection>(number, std::move(socket), find_key, now);
    const int fd = connection->fd();
    connections_.emplace(number, std::move(connection));
    unauthenticated_.insert(number);
    events_.add(fd, EPOLLIN | EPOLLRDHUP,
                [this, number](uint32_t events) { on_event(number, events); });
  }
}

void Server::Loop::close_oldest_unauthenticated(const std::string& why) {
  if (!unauthenticated_.empty()) refuse(*unauthenticated_.begin(), why);
}

void Server::Loop::on_event(Number number, uint32_t events) {
  Connection& connection = *connections_.at(number);
  // After a reset or a timeout of the network, there is an error.
  const bool is_end = (events & EPOLLERR) == 0;
  try {
    if ((events & EPOLLOUT) != 0 && !connection.write_some())
      return close(number);
    if ((events & EPOLLIN) != 0) {
      if (!connection.read_some()) return close(number, is_end);
      read_requests(connection, std::chrono::steady_clock::now());
    } else if ((events & (EPOLLHUP | EPOLLERR | EPOLLRDHUP)) != 0) {
      return close(number, is_end);
    }
    attend(connection);
  } catch (const std::exception& error) {
    refuse(number, text_of(error));
  }
}

void Server::Loop::attend(Connection& connection) {
  if (!connection.write_some()) return close(connection.number());
  if (connection.stage == Connection::Stage::kLeaving &&
      !connection.has_output()) {
    return close(connection.number());
  }
  // While a request waits or a reply is not sent, nothing more is read. Only
  // the end of the connection is detected.
  uint32_t events = EPOLLRDHUP;
  if (connection.has_output()) {
    events |= EPOLLOUT;
  } else if (!connection.waiting) {
    events |= EPOLLIN;
  }
  events_.change(connection.fd(), events);
}

void Server::Loop::close_late(Time now) {
  while (!unauthenticated_.empty() &&
         connections_.at(*unauthenticated_.begin())->since() +
                 options_.handshake_time <=
             now) {
    refuse(*unauthenticated_.begin(), "no handshake in time");
  }
  while (!waiters_.empty() && waiters_.begin()->first <= now) {
    const Number number = waiters_.begin()->second;
    end_wait(*connections_.at(number), {.status = Status::kTimeout});
  }
}

void Server::Loop::carry_out_last_wills(Time now) {
  bool is_any = false;
  for (auto agent = absent_.begin(); agent != absent_.end();) {
    if (agent->second > now) {
      ++agent;
      continue;
    }
    is_any = service_.carry_out_last_will(agent->first) || is_any;
    agent = absent_.erase(agent);
  }
  if (is_any) wake_waiters();
}

void Server::Loop::close_former(const Connection& connection) {
  for (const auto& [number, other] : connections_) {
    const bool is_former = number != connection.number() &&
                           other->stage == Connection::Stage::kOpen &&
                           other->channel == connection.channel &&
                           other->who.role == connection.who.role &&
                           other->who.token == connection.who.token;
    if (is_former) return close(number);
  }
}

void Server::Loop::close_stale_workers() {
  std::vector<Number> stale;
  for (const auto& [number, connection] : connections_) {
    const bool is_in = connection->stage == Connection::Stage::kOpen;
    if (is_in && service_.admissions.is_stale(connection->who))
      stale.push_back(number);
  }
  for (const Number number : stale) close(number);
}

void Server::Loop::refuse(Number number, const std::string& why) {
  const Connection& connection = *connections_.at(number);
  refusals_.add(connection.stage == Connection::Stage::kOpen
                    ? connection.who.text() + " at " + connection.address()
                    : connection.address(),
                why);
  close(number);
}

void Server::Loop::close(Number number, bool is_end) {
  const auto found = connections_.find(number);
  Connection& connection = *found->second;
  if (connection.waiting) waiters_.erase({connection.deadline, number});
  if (connection.stage == Connection::Stage::kOpen &&
      service_.leave(connection.who, connection.channel)) {
    absent_[connection.who.token] =
        std::chrono::steady_clock::now() +
        (is_end ? options_.end_time : options_.reconnect_time);
  }
  unauthenticated_.erase(number);
  events_.remove(connection.fd());
  connections_.erase(found);
}

void Server::Loop::read_requests(Connection& connection, Time now) {
  std::string body;
  while (connection.stage != Connection::Stage::kLeaving &&
         !connection.waiting && !connection.has_output() &&
         connection.next_frame(body)) {
    on_frame(connection, body, now);
    if (!connection.write_some()) {
      throw CommError(
          {.code = ErrorCode::kStoreUnreachable, .what = "the client is gone"});
    }
  }
}

void Server::Loop::on_frame(Connection& connection, const std::string& body,
                            Time now) {
  switch (connection.stage) {
    case Connection::Stage::kHello:
      return on_hello(connection, body);
    case Connection::Stage::kOpen:
      return on_request(connection, decode_request(body, options_.limits), now);
    case Connection::Stage::kHandshake:
    case Connection::Stage::kLeaving:
      return;
  }
}

void Server::Loop::on_hello(Connection& connection, const std::string& body) {
  const Hello hello = decode_hello(body);
  const AdmissionReply reply = admit(connection, hello);
  connection.put(encode(reply));
  if (reply.admission != Admission::kWelcome) {
    refusals_.add(hello.identity.text() + " at " + connection.address(),
                  reply.reason);
    connection.stage = Connection::Stage::kLeaving;
    return;
  }
  connection.set_most_bytes(options_.limits.message_bytes());
  connection.stage = Connection::Stage::kOpen;
  unauthenticated_.erase(connection.number());
  close_former(connection);
  if (connection.who.role == Role::kAgent) {
    absent_.erase(connection.who.token);
  }
}

AdmissionReply Server::Loop::admit(Connection& connection, const Hello& hello) {
  if (hello.version != kProtocolVersion) {
    return {.admission = Admission::kOtherVersion,
            .reason = fmt::format("protocol {} is spoken here, and not {}",
                                  kProtocolVersion, hello.version)};
  }
  if (hello.identity.key_name() != connection.key_name()) {
    throw CommError({.code = ErrorCode::kStoreProtocol,
                     .what = "a client claims to be another than it proved",
                     .expected = printable_ascii(connection.key_name()),
                     .got = hello.identity.text()});
  }
  connection.who = hello.identity;
  connection.channel = hello.channel;
  return service_.admit(connection.who);
}

void Server::Loop::on_request(Connection& connection, const Request& request,
                              Time now) {
  const bool may_wait = request.operation == Operation::kGet ||
                        request.operation == Operation::kWait;
  if (may_wait && !service_.has_all(connection.who, request)) {
    if (request.wait_ms == 0) {
      return connection.put(encode({.status = Status::kTimeout}));
    }
    connection.waiting = request;
    connection.deadline = now + std::chrono::milliseconds(request.wait_ms);
    waiters_.insert({connection.deadline, connection.number()});
    return;
  }
  connection.put(
      encode(service_.answer(connection.who, connection.channel, request)));
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
    const Connection& connection = *connections_.at(number);
    if (service_.has_all(connection.who, *connection.waiting))
      ready.push_back(number);
  }
  for (const Number number : ready) {
    Connection& connection = *connections_.at(number);
    end_wait(connection, service_.answer(connection.who, connection.channel,
                                         *connection.waiting));
  }
}

void Server::Loop::end_wait(Connection& connection, const Reply& reply) {
  waiters_.erase({connection.deadline, connection.number()});
  connection.waiting.reset();
  connection.put(encode(reply));
  attend(connection);
}

Server::Server(const ServerOptions& options,
               std::vector<FileDescriptor> listeners)
    : loop_(std::make_unique<Loop>(options, std::move(listeners))) {}

Server::~Server() = default;

void Server::begin_round(int round, int world_size) {
  loop_->begin_round(round, world_size);
}

}  // namespace lockstep::store
