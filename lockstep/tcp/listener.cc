#include "lockstep/tcp/listener.h"

#include <algorithm>
#include <array>
#include <cerrno>
#include <charconv>
#include <cstring>
#include <memory>
#include <netdb.h>
#include <optional>
#include <poll.h>
#include <sys/socket.h>
#include <utility>

#include <fmt/format.h>
#include <fmt/ranges.h>

#include "lockstep/base/error.h"
#include "lockstep/base/numbers.h"
#include "lockstep/store/socket_address.h"
#include "lockstep/tcp/tls.h"
#include "lockstep/transport/call.h"

namespace lockstep::tcp {
namespace {

using Clock = std::chrono::steady_clock;
using store::Digest;

// Limit on open connections without a proof.
constexpr size_t kMaxUnauthenticatedPeers = 64;
constexpr const char* kFix =
    "look at that rank's output and at firewalls; GLOO_SOCKET_IFNAME names the "
    "network interface to use";
constexpr std::array<char, 8> kMagic{'L', 'S', 'M', 'E', 'S', 'H', '0', '1'};

/// The first message from a rank to a rank below it.
struct Hello {
  std::array<char, 8> magic = kMagic;
  int32_t from = 0;
  int32_t to = 0;
  Digest proof{};
};

/// The address of a rank, and the key with which others prove that they have
/// read its announcement.
struct Place {
  store::SocketAddress address;
  Digest key{};
};

std::string hex_of(const Digest& bytes) {
  return fmt::format("{:02x}", fmt::join(bytes, ""));
}

std::optional<Digest> digest_of(std::string_view hex) {
  Digest bytes{};
  if (hex.size() != 2 * bytes.size()) return std::nullopt;
  for (size_t i = 0; i < bytes.size(); ++i) {
    const char* begin = hex.data() + 2 * i;
    const auto parsed = std::from_chars(begin, begin + 2, bytes[i], 16);
    if (parsed.ptr != begin + 2) return std::nullopt;
  }
  return bytes;
}

Place place_of(int rank, const std::string& announcement) {
  std::string_view text = announcement;
  std::array<std::string_view, 3> words;
  for (auto& word : words) {
    const size_t end = std::min(text.find(' '), text.size());
    word = text.substr(0, end);
    text.remove_prefix(std::min(end + 1, text.size()));
  }
  const auto port = parse_number<uint16_t>(words[1]);
  const auto key = digest_of(words[2]);
  const auto found = port && *port > 0 && key
                         ? store::resolve(std::string(words[0]), *port)
                         : std::vector<store::SocketAddress>();
  if (found.empty()) {
    throw CommError({.code = ErrorCode::kRanksNotConnected,
                     .what = fmt::format("rank {} announced no address that "
                                         "can be connected to",
                                         rank),
                     .expected = "an address, a port and a key",
                     .got = announcement.substr(0, announcement.rfind(' ')),
                     .fix = transport::kUseOneBuild});
  }
  return {.address = found.front(), .key = *key};
}

Digest proof_of(const char* purpose, int from, int to, const Digest& key,
                const Digest& other) {
  const store::Mac mac{store::Key(key)};
  return mac.of({purpose, std::to_string(from), std::to_string(to),
                 store::as_text(other)});
}

/// Sends `bytes`. Returns whether all were sent before the deadline.
bool send_all(int fd, std::span<const std::byte> bytes,
              Clock::time_point deadline,
              const std::function<bool()>& is_over) {
  while (!bytes.empty()) {
    const ssize_t sent =
        ::send(fd, bytes.data(), bytes.size(), MSG_NOSIGNAL | MSG_DONTWAIT);
    if (sent > 0) {
      bytes = bytes.subspan(static_cast<size_t>(sent));
    } else if (errno != EAGAIN && errno != EINTR) {
      return false;
    } else if (!wait_for(fd, POLLOUT, deadline, is_over)) {
      return false;
    }
  }
  return true;
}

/// Receives `bytes`. Returns whether all arrived before the deadline.
bool receive_all(int fd, std::span<std::byte> bytes, Clock::time_point deadline,
                 const std::function<bool()>& is_over) {
  while (!bytes.empty()) {
    const ssize_t got = ::recv(fd, bytes.data(), bytes.size(), MSG_DONTWAIT);
    if (got > 0) {
      bytes = bytes.subspan(static_cast<size_t>(got));
    } else if (got == 0 || (errno != EAGAIN && errno != EINTR)) {
      return false;
    } else if (!wait_for(fd, POLLIN, deadline, is_over)) {
      return false;
    }
  }
  return true;
}

/// A connection to this rank that has not yet proved which rank it is from.
struct UnauthenticatedPeer {
  FileDescriptor socket;
  Hello hello{};
  size_t received = 0;
};

enum class Greeting { kIncomplete, kBad, kComplete };

/// Reads the part of a hello that has arrived.
Greeting read_hello(UnauthenticatedPeer& candidate) {
  auto bytes = std::as_writable_bytes(std::span(&candidate.hello, 1));
  bytes = bytes.subspan(candidate.received);
  const ssize_t got =
      ::recv(candidate.socket.get(), bytes.data(), bytes.size(), MSG_DONTWAIT);
  if (got < 0 && (errno == EAGAIN || errno == EINTR)) {
    return Greeting::kIncomplete;
  }
  if (got <= 0) return Greeting::kBad;
  candidate.received += static_cast<size_t>(got);
  return candidate.received == sizeof(Hello) ? Greeting::kComplete
                                             : Greeting::kIncomplete;
}

/// Connects this rank to all others. It first sends its hello to all ranks
/// below, then accepts the ranks above, and then reads the replies of the ranks
/// below. In this order the ranks can't deadlock.
class Connector {
 public:
  Connector(int rank, std::span<const std::string> announcements,
            const Digest& key, Clock::time_point deadline,
            const std::function<bool()>& is_over)
      : rank_(rank),
        ranks_(static_cast<int>(announcements.size())),
        key_(key),
        deadline_(deadline),
        is_over_(is_over),
        sockets_(announcements.size()) {
    for (int r = 0; r < ranks_; ++r) {
      places_.push_back(place_of(r, announcements[static_cast<size_t>(r)]));
    }
  }

  void greet_ranks_below() {
    for (int peer = 0; peer < rank_; ++peer) {
      const Place& place = places_[static_cast<size_t>(peer)];
      FileDescriptor& socket = sockets_[static_cast<size_t>(peer)];
      socket = store::connect_to(place.address, deadline_);
      if (!socket.is_open()) fail(peer, std::strerror(errno));
      const Hello hello{
          .from = rank_,
          .to = peer,
          .proof = proof_of("hello", rank_, peer, place.key, key_)};
      if (!send_all(socket.get(), std::as_bytes(std::span(&hello, 1)),
                    deadline_, is_over_)) {
        fail(peer, "the connection was closed");
      }
    }
  }

  void accept_ranks_above(int listening_fd) {
    std::vector<UnauthenticatedPeer> candidates;
    for (auto awaited = ranks_not_here(); !awaited.empty();
         awaited = ranks_not_here()) {
      std::vector<pollfd> polled{
          {.fd = listening_fd, .events = POLLIN, .revents = 0}};
      for (const UnauthenticatedPeer& candidate : candidates) {
        polled.push_back(
            {.fd = candidate.socket.get(), .events = POLLIN, .revents = 0});
      }
      ::poll(polled.data(), polled.size(), static_cast<int>(kAskEvery.count()));
      if (Clock::now() >= deadline_ || is_over_()) {
        throw CommError({.code = ErrorCode::kRanksNotConnected,
                         .what = fmt::format(
                             "rank {} of {} got no connection from rank {} in "
                             "time",
                             rank_, ranks_, fmt::join(awaited, ", ")),
                         .fix = kFix});
      }
      for (size_t i = candidates.size(); i-- > 0;) {
        if (polled[i + 1].revents == 0) continue;
        const Greeting greeting = read_hello(candidates[i]);
        if (greeting == Greeting::kIncomplete) continue;
        if (greeting == Greeting::kComplete) admit(candidates[i]);
        candidates.erase(candidates.begin() + static_cast<ptrdiff_t>(i));
      }
      if (polled[0].revents != 0) accept_one(listening_fd, candidates);
    }
  }

  void check_replies_of_ranks_below() {
    for (int peer = 0; peer < rank_; ++peer) {
      const Digest& key = places_[static_cast<size_t>(peer)].key;
      Digest welcome{};
      if (!receive_all(sockets_[static_cast<size_t>(peer)].get(),
                       std::as_writable_bytes(std::span(welcome)), deadline_,
                       is_over_)) {
        fail(peer, "it did not answer");
      }
      if (!store::is_same(proof_of("welcome", rank_, peer, key_, key),
                          store::as_text(welcome))) {
        fail(peer, "somebody else answers there");
      }
    }
  }

  std::vector<FileDescriptor> take_sockets() { return std::move(sockets_); }

 private:
  [[noreturn]] void fail(int peer, const std::string& got) const {
    throw CommError(
        {.code = ErrorCode::kRanksNotConnected,
         .what = fmt::format("rank {} of {} can't connect to rank {} at {}",
                             rank_, ranks_, peer,
                             places_[static_cast<size_t>(peer)].address.text()),
         .got = got,
         .fix = kFix});
  }

  std::vector<int> ranks_not_here() const {
    std::vector<int> found;
    for (int r = rank_ + 1; r < ranks_; ++r) {
      if (!sockets_[static_cast<size_t>(r)].is_open()) found.push_back(r);
    }
    return found;
  }

  static void accept_one(int listening_fd,
                         std::vector<UnauthenticatedPeer>& candidates) {
    FileDescriptor socket(::accept4(listening_fd, nullptr, nullptr,
                                    SOCK_CLOEXEC | SOCK_NONBLOCK));
    // Close the oldest connection without a proof.
    if (candidates.size() == kMaxUnauthenticatedPeers)
      candidates.erase(candidates.begin());
    if (socket.is_open()) candidates.push_back({.socket = std::move(socket)});
  }

  /// Keeps the stranger's socket if its hello proves which rank it is from.
  void admit(UnauthenticatedPeer& candidate) {
    const Hello& hello = candidate.hello;
    if (hello.magic != kMagic || hello.to != rank_ || hello.from <= rank_ ||
        hello.from >= ranks_) {
      return;
    }
    const auto from = static_cast<size_t>(hello.from);
    const Digest& key = places_[from].key;
    if (sockets_[from].is_open() ||
        !store::is_same(proof_of("hello", hello.from, rank_, key_, key),
                        store::as_text(hello.proof))) {
      return;
    }
    const Digest welcome = proof_of("welcome", hello.from, rank_, key, key_);
    // The message fits in the socket's buffer, which is empty.
    if (!send_all(candidate.socket.get(), std::as_bytes(std::span(welcome)),
                  deadline_, is_over_)) {
      return;
    }
    sockets_[from] = std::move(candidate.socket);
  }

  int rank_;
  int ranks_;
  const Digest& key_;
  Clock::time_point deadline_;
  const std::function<bool()>& is_over_;
  std::vector<Place> places_;
  std::vector<FileDescriptor> sockets_;  // by rank; not open for this rank
};

/// Returns the address from which this host would send to `peer`, which a
/// datagram socket has once it is connected. Empty if there is no route to
/// `peer`.
std::string address_towards(const addrinfo& peer) {
  const FileDescriptor socket(
      ::socket(peer.ai_family, SOCK_DGRAM | SOCK_CLOEXEC, peer.ai_protocol));
  if (!socket.is_open() ||
      ::connect(socket.get(), peer.ai_addr, peer.ai_addrlen) != 0) {
    return {};
  }
  const std::string host =
      store::SocketAddress::from_socket(socket.get()).host();
  return host == "?" ? std::string() : host;
}

}  // namespace

std::string local_address_towards(const std::string& peer) {
  addrinfo hints{};
  hints.ai_socktype = SOCK_DGRAM;
  addrinfo* found = nullptr;
  const int result = ::getaddrinfo(peer.c_str(), "9", &hints, &found);
  const std::unique_ptr<addrinfo, decltype(&::freeaddrinfo)> all(
      result == 0 ? found : nullptr, &::freeaddrinfo);
  for (const addrinfo* at = all.get(); at != nullptr; at = at->ai_next) {
    std::string address = address_towards(*at);
    if (!address.empty()) return address;
  }
  throw CommError({.code = ErrorCode::kStoreUnreachable,
                   .what = fmt::format("no way to host '{}'", peer),
                   .got = result == 0 ? "no route" : ::gai_strerror(result),
                   .fix = "check MASTER_ADDR and the network"});
}

Listener::Listener(const std::string& host, const std::string& interface)
    : key_(store::random_nonce()) {
  int port = 0;
  auto sockets = store::listen_at(host, port, interface);
  if (sockets.empty()) {
    throw CommError({.code = ErrorCode::kCannotListen,
                     .what = "can't listen at '" + host + "'",
                     .expected = "a free port",
                     .fix = "close other programs that listen"});
  }
  socket_ = std::move(sockets.front());
}

std::string Listener::announcement() const {
  const auto address = store::SocketAddress::from_socket(socket_.get());
  return fmt::format("{} {} {}", address.host(), address.port(), hex_of(key_));
}

std::vector<Socket> Listener::connect(
    int rank, std::span<const std::string> announcements, Time deadline,
    const std::function<bool()>& is_over) {
  const auto tls = Tls::from_environment();
  Connector connector(rank, announcements, key_, deadline, is_over);
  connector.greet_ranks_below();
  connector.accept_ranks_above(socket_.get());
  connector.check_replies_of_ranks_below();
  socket_.close();
  // Every rank does its handshakes in the order of the peers. The first pair of
  // ranks without a handshake can always do it, so the ranks never wait in a
  // ring.
  auto sockets = connector.take_sockets();
  std::vector<Socket> connected(sockets.size());
  for (size_t peer = 0; peer < sockets.size(); ++peer) {
    Socket& to = connected[peer];
    to.fd = std::move(sockets[peer]);
    const auto peer_rank = static_cast<int>(peer);
    if (!tls || peer_rank == rank) continue;
    to.ssl = tls->shake_hands(to.fd.get(), /*is_server=*/peer_rank > rank,
                              deadline, is_over);
  }
  return connected;
}

}  // namespace lockstep::tcp
