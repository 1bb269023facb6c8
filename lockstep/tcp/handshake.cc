#include "lockstep/tcp/handshake.h"

#include <string_view>
#include <sys/epoll.h>
#include <utility>

#include <fmt/format.h>

#include "lockstep/base/numbers.h"

namespace lockstep::tcp {
namespace {

// The name of the key with which `from` connects, less its number at the end.
std::string prefix_of(const std::string& purpose, int to) {
  return fmt::format("{} to rank {} from rank ", purpose, to);
}

}  // namespace

Handshake Handshake::with(const std::string& purpose, int rank, int peer,
                          FileDescriptor socket, const store::Key& key,
                          Data data) {
  const std::string name = prefix_of(purpose, peer) + std::to_string(rank);
  Handshake made(store::SecureSocket::client(std::move(socket), name,
                                             store::derived(key, {name})),
                 data);
  made.peer_ = peer;
  return made;
}

Handshake Handshake::with_stranger(const std::string& purpose, int rank,
                                   int ranks, FileDescriptor socket,
                                   const store::Key& key, Data data) {
  const std::string prefix = prefix_of(purpose, rank);
  const auto find_key =
      [=](std::string_view name) -> std::optional<store::Key> {
    if (!name.starts_with(prefix)) return std::nullopt;
    const auto from =
        parse_number<int>(std::string(name).substr(prefix.size()));
    if (!from || *from < 0 || *from >= ranks || *from == rank) {
      return std::nullopt;
    }
    return store::derived(key, {name});
  };
  Handshake made(store::SecureSocket::server(std::move(socket), find_key),
                 data);
  made.prefix_ = prefix;
  return made;
}

uint32_t Handshake::events() const { return wants_write_ ? EPOLLOUT : EPOLLIN; }

Handshake::Outcome Handshake::advance() {
  Outcome outcome = Outcome::kDone;
  if (!is_proven_) {
    outcome = socket_.shake_hands();
    is_proven_ = outcome == Outcome::kDone;
    if (is_proven_ && !peer_) {
      peer_ = parse_number<int>(socket_.key_name().substr(prefix_.size()));
    }
  }
  if (is_proven_ && data_ == Data::kPlain) outcome = socket_.leave_tls();
  wants_write_ = outcome == Outcome::kWantsWrite;
  return outcome;
}

}  // namespace lockstep::tcp
