#pragma once

#include <array>
#include <atomic>
#include <cerrno>
#include <functional>
#include <list>
#include <memory>
#include <mutex>
#include <poll.h>
#include <string>
#include <sys/socket.h>
#include <thread>
#include <utility>
#include <vector>

#include "lockstep/store/socket_address.h"
#include "tests/store/raw_peer.h"

namespace lockstep::store {

/// The network between the clients and the server of a store: passes on what
/// they send, and can break connections.
class Forwarder {
 public:
  explicit Forwarder(int server_port)
      : server_port_(server_port),
        listeners_(listen_at("127.0.0.1", port_)),
        thread_([this] { run(); }) {}
  ~Forwarder() {
    is_over_ = true;
    thread_.join();
  }
  Forwarder(const Forwarder&) = delete;
  Forwarder& operator=(const Forwarder&) = delete;

  int port() const { return port_; }

  /// Resets all connections. New ones are possible.
  void reset() {
    const std::lock_guard lock(mutex_);
    for (Line& line : lines_) break_off(line);
    lines_.clear();
  }

  /// The present connections carry nothing until release(). New ones do.
  void stall() { set_stalled(true); }
  /// Nothing is carried until release(), and there are no new connections.
  void hold() { is_held_ = true; }
  /// The same for what the server sends.
  void hold_answers() { are_answers_held_ = true; }
  void release() {
    is_held_ = false;
    are_answers_held_ = false;
    set_stalled(false);
  }

  /// Loses the next `count` answers to requests, and resets their connections.
  /// Calls `on_loss` before each reset.
  void lose_answers(
      int count, std::function<void()> on_loss = [] {}) {
    const std::lock_guard lock(mutex_);
    to_lose_ = count;
    on_loss_ = std::move(on_loss);
  }

 private:
  // The server's records before the first answer: three of the handshake, and
  // the reply to the hello.
  static constexpr int kBeforeAnswers = 4;

  struct Line {
    FileDescriptor client, server;
    RecordReader answers;
    int answered = 0;  // records from the server
    bool is_stalled = false;
  };

  void set_stalled(bool is_stalled) {
    const std::lock_guard lock(mutex_);
    for (Line& line : lines_) line.is_stalled = is_stalled;
  }

  void run() {
    while (!is_over_) {
      if (is_held_) {
        ::poll(nullptr, 0, 1);
        continue;
      }
      accept_some();
      const std::lock_guard lock(mutex_);
      lines_.remove_if([&](Line& line) { return !pass_on(line); });
    }
  }

  void accept_some() {
    pollfd ready{listeners_[0].get(), POLLIN, 0};
    if (::poll(&ready, 1, 1) != 1) return;
    FileDescriptor client(
        ::accept4(listeners_[0].get(), nullptr, nullptr, SOCK_CLOEXEC));
    FileDescriptor server =
        connect_to(resolve("127.0.0.1", server_port_).at(0),
                   std::chrono::steady_clock::now() + std::chrono::seconds(20));
    if (!client.is_open() || !server.is_open()) return;
    const std::lock_guard lock(mutex_);
    lines_.emplace_back();
    lines_.back().client = std::move(client);
    lines_.back().server = std::move(server);
  }

  // Returns false once the connection is over.
  bool pass_on(Line& line) {
    if (line.is_stalled) return true;
    std::string bytes;
    if (!receive(line, line.client, bytes)) return false;
    if (!send(line.server, bytes)) return false;
    if (are_answers_held_) return true;
    bytes.clear();
    if (!receive(line, line.server, bytes)) return false;
    line.answers.add(bytes);
    for (std::string record; line.answers.next(record);) {
      if (line.answered++ >= kBeforeAnswers && to_lose_ > 0) {
        --to_lose_;
        on_loss_();
        break_off(line);
        return false;
      }
      if (!send(line.client, record)) return false;
    }
    return true;
  }

  // Appends the available bytes. Returns false at the end. A reset is passed
  // on.
  static bool receive(Line& line, const FileDescriptor& from,
                      std::string& bytes) {
    std::array<char, 65536> buffer;
    const ssize_t got =
        ::recv(from.get(), buffer.data(), buffer.size(), MSG_DONTWAIT);
    if (got > 0) bytes.append(buffer.data(), static_cast<size_t>(got));
    if (got > 0 || (got < 0 && errno == EAGAIN)) return true;
    if (got < 0) break_off(line);
    return false;
  }

  static bool send(const FileDescriptor& to, std::string_view bytes) {
    while (!bytes.empty()) {
      const ssize_t put =
          ::send(to.get(), bytes.data(), bytes.size(), MSG_NOSIGNAL);
      if (put > 0) bytes.remove_prefix(static_cast<size_t>(put));
      pollfd ready{to.get(), POLLOUT, 0};
      if (put <= 0 && ::poll(&ready, 1, 20'000) != 1) return false;
      if (put < 0 && errno != EAGAIN) return false;
    }
    return true;
  }

  static void break_off(Line& line) {
    const linger reset{.l_onoff = 1, .l_linger = 0};
    for (FileDescriptor* end : {&line.client, &line.server}) {
      ::setsockopt(end->get(), SOL_SOCKET, SO_LINGER, &reset, sizeof reset);
      end->close();
    }
  }

  const int server_port_;
  int port_ = 0;
  std::vector<FileDescriptor> listeners_;
  std::mutex mutex_;  // guards what follows
  std::list<Line> lines_;
  int to_lose_ = 0;
  std::function<void()> on_loss_ = [] {};
  std::atomic<bool> is_held_ = false;
  std::atomic<bool> are_answers_held_ = false;
  std::atomic<bool> is_over_ = false;
  std::thread thread_;
};

}  // namespace lockstep::store
