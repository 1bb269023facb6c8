#pragma once

#include <array>
#include <chrono>
#include <functional>
#include <optional>
#include <poll.h>
#include <span>
#include <stdexcept>
#include <string>
#include <sys/socket.h>
#include <thread>
#include <utility>
#include <vector>

#include "lockstep/store/identity.h"
#include "lockstep/store/secure_socket.h"
#include "lockstep/store/socket_address.h"
#include "lockstep/store/wire.h"

namespace lockstep::store {

/// Cuts a stream of TLS into records, with their headers.
class RecordReader {
 public:
  void add(std::string_view bytes) { buffer_ += bytes; }
  bool next(std::string& record) {
    constexpr size_t kHeaderBytes = 5;
    if (buffer_.size() < kHeaderBytes) return false;
    const auto byte = [&](size_t at) {
      return static_cast<size_t>(static_cast<uint8_t>(buffer_[at]));
    };
    const size_t size = kHeaderBytes + (byte(3) << 8 | byte(4));
    if (buffer_.size() < size) return false;
    record = buffer_.substr(0, size);
    buffer_.erase(0, size);
    return true;
  }

 private:
  std::string buffer_;
};

inline std::chrono::steady_clock::time_point soon() {
  return std::chrono::steady_clock::now() + std::chrono::seconds(20);
}

/// A connection that sends arbitrary bytes.
class RawPeer {
 public:
  explicit RawPeer(int port)
      : socket_(connect_to(resolve("127.0.0.1", port).at(0), soon())) {}
  explicit RawPeer(FileDescriptor socket) : socket_(std::move(socket)) {}

  bool is_open() const { return socket_.is_open(); }
  int fd() const { return socket_.get(); }
  void close() { socket_.close(); }

  /// Returns false once the other end has closed the connection.
  bool send(std::string_view bytes) const {
    return ::send(fd(), bytes.data(), bytes.size(), MSG_NOSIGNAL) ==
           static_cast<ssize_t>(bytes.size());
  }

  /// Returns the next record of TLS. Returns nothing if the connection ends, or
  /// if no record arrives within 20 seconds.
  std::optional<std::string> receive_record() {
    std::string record;
    while (!in_.next(record)) {
      const auto bytes = receive();
      if (!bytes) return std::nullopt;
      in_.add(*bytes);
    }
    return record;
  }

  /// Returns whether the other end closes the connection within 20 seconds,
  /// without sending anything except an alert of TLS.
  bool is_closed() {
    while (const auto record = receive_record()) {
      constexpr char kAlert = 21;
      if (record->front() != kAlert) return false;
    }
    return !has_timed_out_;
  }

 private:
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
  RecordReader in_;
  bool has_timed_out_ = false;
};

/// A client that knows a key, and sends arbitrary messages.
class SecurePeer {
 public:
  SecurePeer(int port, const Identity& who, const Key& key)
      : socket_(SecureSocket::client(
            connect_to(resolve("127.0.0.1", port).at(0), soon()),
            who.key_name(), key)) {
    while (may_repeat(socket_.shake_hands())) {
    }
  }

  int fd() const { return socket_.fd(); }
  void send(const std::string& body) {
    const std::string frame = framed(body);
    auto rest = std::as_bytes(std::span(frame));
    for (size_t put = 0; !rest.empty(); rest = rest.subspan(put)) {
      put = 0;
      if (!may_repeat(socket_.write(rest, put)) && put == 0) return;
    }
  }
  /// Returns nothing if the connection ends.
  std::optional<std::string> receive() {
    std::array<std::byte, 4096> buffer;
    std::string body;
    while (!in_.next(body)) {
      size_t got = 0;
      if (!may_repeat(socket_.read(buffer, got)) && got == 0) {
        return std::nullopt;
      }
      in_.add({reinterpret_cast<const char*>(buffer.data()), got});
    }
    return body;
  }

 private:
  // Waits, for 20 seconds at most, if a call can be repeated then.
  bool may_repeat(SecureSocket::Outcome outcome) const {
    const bool is_read = outcome == SecureSocket::Outcome::kWantsRead;
    if (!is_read && outcome != SecureSocket::Outcome::kWantsWrite) return false;
    pollfd ready{fd(), is_read ? short{POLLIN} : short{POLLOUT}, 0};
    if (::poll(&ready, 1, 20'000) != 1) throw std::runtime_error("no answer");
    return true;
  }

  SecureSocket socket_;
  FrameReader in_{size_t{1} << 25};
};

/// Sits between a client and the server for one connection. `meddle` gets each
/// record of the client and its number, and sends the server what it wants.
class ManInTheMiddle {
 public:
  // The client's records: its part of the handshake, in two, its hello, and one
  // for each request.
  static constexpr int kFirstRequest = 3;
  using Meddle = std::function<void(int number, const std::string& record,
                                    RawPeer& server)>;

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
            while (const auto record = server.receive_record()) {
              client.send(*record);
            }
            ::shutdown(client.fd(), SHUT_RDWR);
          });
          for (int number = 0; const auto record = client.receive_record();) {
            meddle(number++, *record, server);
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
