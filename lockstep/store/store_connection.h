#pragma once

#include <chrono>
#include <optional>
#include <string>

#include "lockstep/base/file_descriptor.h"
#include "lockstep/store/handshake.h"
#include "lockstep/store/message.h"
#include "lockstep/store/wire.h"

namespace lockstep::store {

/// The server's end of one connection: its socket, the bytes that are not yet
/// processed or sent, and the stage of the handshake.
class Connection {
 public:
  using Time = std::chrono::steady_clock::time_point;
  using Number = uint64_t;

  Connection(Number number, FileDescriptor socket, Time now);

  Number number() const { return number_; }  ///< never reused

  int fd() const { return socket_.get(); }
  const std::string& address() const { return address_; }
  Time since() const { return since_; }

  /// Reads the available bytes. Returns false at the end of the connection.
  bool read_some();
  /// Writes as much as the socket takes. Returns false if the connection is
  /// broken.
  bool write_some();
  bool has_output() const { return written_ < out_.size(); }
  void put_frame(std::string_view body) { out_ += framed(body); }
  void put_reply(const Reply& reply) { out_ += session->seal(encode(reply)); }
  bool next_frame(std::string& body) { return in_.next(body); }
  void set_most_bytes(size_t most) { in_.set_most(most); }

  enum class Stage { kHello, kProof, kOpen, kLeaving };
  Stage stage = Stage::kHello;
  Identity who;     ///< as claimed by the client; proven from kOpen on
  Token channel{};  ///< channel that uses this connection
  std::optional<Handshake> handshake;  ///< from kProof on
  std::optional<Session> session;      ///< from kOpen on
  /// The request that waits for a key. No other request is read meanwhile.
  std::optional<Request> waiting;
  Time deadline{};              ///< of the waiting request
  uint32_t watched_events = 0;  ///< events that epoll watches

 private:
  const Number number_;
  FileDescriptor socket_;
  std::string address_;
  Time since_;
  FrameReader in_;
  std::string out_;
  size_t written_ = 0;
};

}  // namespace lockstep::store
