#pragma once

#include <array>
#include <chrono>
#include <functional>
#include <optional>
#include <poll.h>
#include <string>
#include <sys/socket.h>
#include <thread>

#include "lockstep/store/socket_address.h"
#include "lockstep/store/wire.h"

namespace lockstep::store {

/// A connection that sends arbitrary bytes.
class RawPeer {
 public:
  explicit RawPeer(int port)
      : socket_(connect_to(resolve("127.0.0.1", port).at(0), deadline())) {}
  explicit RawPeer(FileDescriptor socket) : socket_(std::move(socket)) {}

  bool is_open() const { return socket_.is_open(); }
  int fd() const { return socket_.get(); }
  void close() { socket_.close(); }

  /// Returns false once the other end has closed the connection.
  bool send(std::string_view bytes) const {
    return ::send(fd(), bytes.data(), bytes.size(), MSG_NOSIGNAL) ==
           static_cast<ssize_t>(bytes.size());
  }
  bool send_frame(std::string_view body) const { return send(framed(body)); }

  /// Returns the next frame's body. Returns nothing if the connection ends, or
  /// if no frame arrives within 20 seconds.
  std::optional<std::string> receive_frame() {
    std::string body;
    while (!in_.next(body)) {
      const auto bytes = receive();
      if (!bytes) return std::nullopt;
      in_.add(*bytes);
    }
    return body;
  }

  /// Returns whether the other end closes the connection within 20 seconds,
  /// without sending anything else.
  bool is_closed() {
    const auto bytes = receive();
    return !bytes && !has_timed_out_;
  }

 private:
  static std::chrono::steady_clock::time_point deadline() {
    return std::chrono::steady_clock::now() + std::chrono::seconds(20);
  }
  std::optional<std::string> receive() {
    std::array<char, 4096> buffer;
    pollfd ready{fd(), POLLIN, 0};
    has_timed_out_ = ::poll(&ready, 1, 20'000) != 1;
    if (has_timed_out_) return std::nullopt;
    const ssize_t got = ::recv(fd(), buffer.data(), buffer.size(), 0);
    if (got <= 0) return std::nullopt;
    return std::string(buffer.data(), static_cast<size_t>(got));
  }

  FileDescriptor socket_;
  FrameReader in_{size_t{1} << 25};
  bool has_timed_out_ = false;
};

/// Sits between a client and the server for one connection. `meddle` gets each
/// frame of the client and its number, and returns the frame that is passed on.
class ManInTheMiddle {
 public:
  using Meddle =
      std::function<void(int number, const std::string& body, RawPeer& server)>;

  ManInTheMiddle(int server_port, Meddle meddle)
      : listeners_(listen_at("127.0.0.1", port_)),
        thread_([this, server_port, meddle] {
          pollfd ready{listeners_[0].get(), POLLIN, 0};
          if (::poll(&ready, 1, 20'000) != 1) return;
          RawPeer client(FileDescriptor(
              ::accept4(listeners_[0].get(), nullptr, nullptr, SOCK_CLOEXEC)));
          listeners_.clear();  // there is no second connection
          RawPeer server(server_port);
          std::thread back([&] {
            while (const auto body = server.receive_frame()) {
              client.send_frame(*body);
            }
            ::shutdown(client.fd(), SHUT_RDWR);
          });
          for (int number = 0; const auto body = client.receive_frame();) {
            meddle(number++, *body, server);
          }
          ::shutdown(server.fd(), SHUT_RDWR);
          back.join();
        }) {}
  ~ManInTheMiddle() { thread_.join(); }
  ManInTheMiddle(const ManInTheMiddle&) = delete;
  ManInTheMiddle& operator=(const ManInTheMiddle&) = delete;

  int port() const { return port_; }

 private:
  int port_ = 0;
  std::vector<FileDescriptor> listeners_;
  std::thread thread_;
};

}  // namespace lockstep::store
