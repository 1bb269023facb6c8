#include "lockstep/tools/top/metrics_endpoint.h"

#include <algorithm>
#include <cerrno>
#include <chrono>
#include <list>
#include <optional>
#include <string_view>
#include <sys/epoll.h>
#include <sys/socket.h>
#include <thread>
#include <utility>
#include <vector>

#include <fmt/format.h>

#include "lockstep/base/error.h"
#include "lockstep/base/event_loop.h"
#include "lockstep/base/file_descriptor.h"
#include "lockstep/base/text.h"
#include "lockstep/store/socket_address.h"

namespace lockstep::cli {
namespace {

using Clock = std::chrono::steady_clock;

// Time limit for a request to arrive, and again for its answer to be read.
constexpr std::chrono::seconds kPatience{5};
constexpr size_t kMaxClients = 64;
constexpr size_t kMaxRequestBytes = 8 << 10;
constexpr std::string_view kEndOfHead = "\r\n\r\n";

struct Client {
  FileDescriptor socket;
  Clock::time_point deadline = Clock::now() + kPatience;
  std::string request{};
  std::string answer{};  ///< empty until the request is whole
  size_t sent = 0;
};

struct Request {
  std::string_view method;
  std::string_view path;
  std::vector<std::string_view> hosts;
};

std::string lower(std::string_view text) {
  std::string result(text);
  for (char& c : result) {
    if (c >= 'A' && c <= 'Z') c = static_cast<char>(c - 'A' + 'a');
  }
  return result;
}

/// Removes the part before `separator` from `text`, and the separator with it.
/// Returns that part.
std::string_view take_until(std::string_view& text,
                            std::string_view separator) {
  const size_t end = std::min(text.find(separator), text.size());
  const std::string_view taken = text.substr(0, end);
  text.remove_prefix(std::min(end + separator.size(), text.size()));
  return taken;
}

/// Returns nullopt if `head` is not HTTP.
std::optional<Request> parse(std::string_view head) {
  std::string_view line = take_until(head, "\r\n");
  Request request{.method = take_until(line, " "), .path = {}, .hosts = {}};
  std::string_view target = take_until(line, " ");
  if (!line.starts_with("HTTP/1.")) return std::nullopt;
  request.path = take_until(target, "?");
  while (!head.empty()) {
    std::string_view value = take_until(head, "\r\n");
    const std::string_view name = take_until(value, ":");
    if (lower(name) == "host") request.hosts.push_back(trimmed(value));
  }
  return request;
}

/// Returns true if the request's Host is the loopback address. A page from
/// elsewhere could use a name that resolves to this host (DNS rebinding), and
/// would then be able to read the answer.
bool is_loopback(const Request& request, int port) {
  if (request.hosts.size() != 1) return false;
  const std::string host = lower(request.hosts[0]);
  for (const char* name : {"127.0.0.1", "localhost", "[::1]"}) {
    if (host == fmt::format("{}:{}", name, port)) return true;
  }
  return false;
}

std::string answer_of(std::string_view status, std::string_view body,
                      bool has_body = true) {
  return fmt::format(
      "HTTP/1.1 {}\r\nContent-Type: text/plain; version=0.0.4\r\n"
      "Content-Length: {}\r\nConnection: close\r\n\r\n{}",
      status, body.size(), has_body ? body : "");
}

}  // namespace

class MetricsEndpoint::Server {
 public:
  Server(int port, std::function<std::string()> metrics)
      : metrics_(std::move(metrics)) {
    auto sockets = store::listen_at(store::loopback_host(), port);
    if (sockets.empty()) {
      throw IoError(
          {.code = ErrorCode::kBadOption,
           .what = fmt::format("can't listen on {} port {}",
                               store::loopback_host(), port),
           .expected = "a free port",
           .fix = "give --metrics another port, or 0 for any free one"});
    }
    listener_ = std::move(sockets.front());
    address_ = store::SocketAddress::from_socket(listener_.get());
    events_.add(listener_.get(), EPOLLIN, [this](uint32_t) { accept(); });
    thread_ = std::thread([this] { events_.run(); });
  }
  ~Server() {
    events_.stop();
    thread_.join();
  }

  const store::SocketAddress& address() const { return address_; }

 private:
  using Place = std::list<Client>::iterator;

  void accept() {
    FileDescriptor socket(::accept4(listener_.get(), nullptr, nullptr,
                                    SOCK_CLOEXEC | SOCK_NONBLOCK));
    if (!socket.is_open()) return;
    const int fd = socket.get();
    const Place client =
        clients_.insert(clients_.end(), {.socket = std::move(socket)});
    events_.add(fd, EPOLLIN, [this, client](uint32_t) { go_on(client); });
    if (clients_.size() == kMaxClients) events_.change(listener_.get(), 0);
    watch_deadlines();
  }

  void close(Place client) {
    events_.remove(client->socket.get());
    clients_.erase(client);
    events_.change(listener_.get(), EPOLLIN);
  }

  /// Closes late clients from now on, until there is no client.
  void watch_deadlines() {
    if (is_watching_deadlines_ || clients_.empty()) return;
    is_watching_deadlines_ = true;
    const auto first =
        std::ranges::min_element(clients_, {}, &Client::deadline);
    events_.at(first->deadline, [this] {
      is_watching_deadlines_ = false;
      for (Place each = clients_.begin(); each != clients_.end();) {
        const Place client = each++;
        if (client->deadline <= Clock::now()) close(client);
      }
      watch_deadlines();
    });
  }

  /// Reads or writes as much as possible. Closes a client that is done.
  void go_on(Place client) {
    const bool goes_on =
        client->answer.empty() ? read_some(*client) : write_some(*client);
    if (!goes_on) return close(client);
    if (!client->answer.empty()) {
      events_.change(client->socket.get(), EPOLLOUT);
    }
  }

  /// Returns false once the answer is sent or the connection is broken.
  static bool write_some(Client& client) {
    const std::string_view rest =
        std::string_view(client.answer).substr(client.sent);
    const ssize_t sent = ::send(client.socket.get(), rest.data(), rest.size(),
                                MSG_NOSIGNAL | MSG_DONTWAIT);
    if (sent < 0) return errno == EAGAIN || errno == EINTR;
    client.sent += static_cast<size_t>(sent);
    return client.sent < client.answer.size();
  }

  /// Makes the answer when the request is whole. Returns false if the client
  /// closed the connection.
  bool read_some(Client& client) {
    std::string buffer(kMaxRequestBytes, '\0');
    const ssize_t got =
        ::recv(client.socket.get(), buffer.data(), buffer.size(), MSG_DONTWAIT);
    if (got < 0) return errno == EAGAIN || errno == EINTR;
    if (got == 0) return false;
    client.request.append(buffer, 0, static_cast<size_t>(got));
    const size_t end = client.request.find(kEndOfHead);
    if (end != std::string::npos) {
      client.answer =
          answer_to(std::string_view(client.request).substr(0, end));
    } else if (client.request.size() > kMaxRequestBytes) {
      client.answer = answer_of("431 Request Header Fields Too Large", "");
    } else {
      return true;
    }
    client.deadline = Clock::now() + kPatience;
    return true;
  }

  std::string answer_to(std::string_view head) const {
    const auto request = parse(head);
    if (!request) return answer_of("400 Bad Request", "");
    if (!is_loopback(*request, address_.port())) {
      return answer_of("403 Forbidden",
                       "Host must be 127.0.0.1, localhost or [::1], with the "
                       "port\n");
    }
    const bool is_head = request->method == "HEAD";
    if (!is_head && request->method != "GET") {
      return answer_of("405 Method Not Allowed", "");
    }
    if (request->path != "/metrics") {
      return answer_of("404 Not Found", "", !is_head);
    }
    try {
      return answer_of("200 OK", metrics_(), !is_head);
    } catch (const std::exception&) {
      return answer_of("500 Internal Server Error", "", !is_head);
    }
  }

  std::function<std::string()> metrics_;
  FileDescriptor listener_;
  store::SocketAddress address_;
  EventLoop events_;
  std::list<Client> clients_;
  bool is_watching_deadlines_ = false;
  std::thread thread_;
};

MetricsEndpoint::MetricsEndpoint(int port, std::function<std::string()> metrics)
    : server_(std::make_unique<Server>(port, std::move(metrics))) {}

MetricsEndpoint::~MetricsEndpoint() = default;

std::string MetricsEndpoint::url() const {
  return fmt::format("http://{}/metrics", server_->address().text());
}

}  // namespace lockstep::cli
