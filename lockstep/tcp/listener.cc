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
#include "lockstep/transport/call.h"

namespace lockstep::tcp {
namespace {

using Clock = std::chrono::steady_clock;
using std::chrono::milliseconds;
using store::SecureSocket;
using Outcome = SecureSocket::Outcome;

// Limit on open connections of strangers. The other ranks come on top.
constexpr size_t kMaxStrangers = 64;
constexpr milliseconds kAskEvery{500};
// Pause before a rank connects again to one that closed its connection.
constexpr milliseconds kPause{20};
constexpr const char* kFix =
    "look at that rank's output and at firewalls; GLOO_SOCKET_IFNAME names the "
    "network interface to use";
constexpr const char* kEncrypted = "encrypted";
constexpr const char* kPlain = "plain";

/// What a rank announces.
struct Place {
  store::SocketAddress address;
  store::Key key;
  std::string data;  ///< kPlain, kEncrypted
};

std::string hex_of(const store::Key& key) {
  return fmt::format("{:02x}", fmt::join(key.bytes(), ""));
}

std::optional<store::Key> key_of(std::string_view hex) {
  store::Digest bytes{};
  if (hex.size() != 2 * bytes.size()) return std::nullopt;
  for (size_t i = 0; i < bytes.size(); ++i) {
    const char* begin = hex.data() + 2 * i;
    const auto parsed = std::from_chars(begin, begin + 2, bytes[i], 16);
    if (parsed.ptr != begin + 2) return std::nullopt;
  }
  return store::Key(bytes);
}

Place place_of(int rank, const std::string& announcement) {
  std::string_view text = announcement;
  std::array<std::string_view, 4> words;
  for (auto& word : words) {
    const size_t end = std::min(text.find(' '), text.size());
    word = text.substr(0, end);
    text.remove_prefix(std::min(end + 1, text.size()));
  }
  const auto port = parse_number<uint16_t>(words[1]);
  const auto key = key_of(words[2]);
  const bool is_complete = port && *port > 0 && key &&
                           (words[3] == kPlain || words[3] == kEncrypted);
  const auto found = is_complete ? store::resolve(std::string(words[0]), *port)
                                 : std::vector<store::SocketAddress>();
  if (found.empty()) {
    throw CommError({.code = ErrorCode::kRanksNotConnected,
                     .what = fmt::format("rank {} announced no address that "
                                         "can be connected to",
                                         rank),
                     .expected = "an address, a port, a key, and plain or "
                                 "encrypted",
                     .got = fmt::format("{} {}", words[0], words[1]),
                     .fix = transport::kUseOneBuild});
  }
  return {.address = found.front(), .key = *key, .data = std::string(words[3])};
}

void check_data(const std::vector<Place>& places) {
  const auto other = std::find_if(
      places.begin(), places.end(),
      [&](const Place& place) { return place.data != places.front().data; });
  if (other == places.end()) return;
  throw InvalidArgument(
      "comm",
      {.code = ErrorCode::kBadVariable,
       .what = "only some ranks ask for encrypted connections",
       .expected = "the same on all ranks",
       .got = fmt::format("{} data on rank 0, and {} on rank {}",
                          places.front().data, other->data,
                          other - places.begin()),
       .fix = "set LOCKSTEP_ENCRYPT to the same value for all of them"});
}

/// Returns the name of the key with which `from` connects to `to`.
std::string name_of(int from, int to) {
  return fmt::format("rank {} to rank {}", from, to);
}

/// Connects this rank to all others: to those below it, while it accepts those
/// above it. All handshakes go on at once, so the ranks can't wait in a ring.
class Connector {
 public:
  Connector(int rank, std::span<const std::string> announcements,
            const store::Key& key, int listening_fd, Clock::time_point deadline)
      : rank_(rank),
        ranks_(static_cast<int>(announcements.size())),
        key_(key),
        listening_fd_(listening_fd),
        deadline_(deadline),
        sockets_(announcements.size()) {
    for (int r = 0; r < ranks_; ++r) {
      places_.push_back(place_of(r, announcements[static_cast<size_t>(r)]));
    }
    check_data(places_);
  }

  std::vector<SecureSocket> run(const std::function<bool()>& is_over) {
    for (int peer = 0; peer < rank_; ++peer) {
      handshakes_.push_back({.peer = peer});
    }
    for (auto awaited = awaited_ranks(); !awaited.empty();
         awaited = awaited_ranks()) {
      if (Clock::now() >= deadline_ || is_over()) {
        throw CommError({.code = ErrorCode::kRanksNotConnected,
                         .what = fmt::format(
                             "rank {} of {} has no connection to rank {} in "
                             "time",
                             rank_, ranks_, fmt::join(awaited, ", ")),
                         .fix = kFix});
      }
      for (Handshake& each : handshakes_) {
        if (!each.socket.is_open() && each.again_at <= Clock::now()) {
          connect(each);
        }
      }
      wait_and_accept();
      for (Handshake& each : handshakes_) {
        if (each.socket.is_open()) advance(each);
      }
      std::erase_if(handshakes_,
                    [](const Handshake& each) { return each.is_over; });
    }
    return std::move(sockets_);
  }

 private:
  struct Handshake {
    std::optional<int> peer;  // of a stranger: once it is proven
    SecureSocket socket;      // closed: to connect at `again_at`
    Clock::time_point again_at{};
    bool is_proven = false;
    bool wants_write = false;
    bool is_over = false;
  };

  [[noreturn]] void fail(int peer, const std::string& got) const {
    throw CommError(
        {.code = ErrorCode::kRanksNotConnected,
         .what = fmt::format("rank {} of {} can't connect to rank {} at {}",
                             rank_, ranks_, peer,
                             places_[static_cast<size_t>(peer)].address.text()),
         .got = got,
         .fix = kFix});
  }

  std::vector<int> awaited_ranks() const {
    std::vector<int> awaited;
    for (int r = 0; r < ranks_; ++r) {
      const bool is_here = sockets_[static_cast<size_t>(r)].is_open();
      if (r != rank_ && !is_here) awaited.push_back(r);
    }
    return awaited;
  }

  void connect(Handshake& to) const {
    const Place& place = places_[static_cast<size_t>(*to.peer)];
    FileDescriptor socket = store::connect_to(place.address, deadline_);
    if (!socket.is_open()) fail(*to.peer, std::strerror(errno));
    const std::string name = name_of(rank_, *to.peer);
    to.socket = SecureSocket::client(std::move(socket), name,
                                     store::derived(place.key, {name}));
    advance_handshake(to);
  }

  /// Waits until a connection is ready or a stranger comes.
  void wait_and_accept() {
    std::vector<pollfd> polled{
        {.fd = listening_fd_, .events = POLLIN, .revents = 0}};
    auto until = std::min(deadline_, Clock::now() + kAskEvery);
    for (const Handshake& each : handshakes_) {
      if (!each.socket.is_open()) {
        until = std::min(until, each.again_at);
      } else {
        const short events = each.wants_write ? POLLOUT : POLLIN;
        polled.push_back(
            {.fd = each.socket.fd(), .events = events, .revents = 0});
      }
    }
    ::poll(polled.data(), polled.size(), store::poll_timeout_ms(until));
    if (polled[0].revents != 0) accept_one();
  }

  void accept_one() {
    FileDescriptor socket(::accept4(listening_fd_, nullptr, nullptr,
                                    SOCK_CLOEXEC | SOCK_NONBLOCK));
    if (!socket.is_open()) return;
    const auto is_stranger = [](const Handshake& each) { return !each.peer; };
    const auto strangers = static_cast<size_t>(
        std::count_if(handshakes_.begin(), handshakes_.end(), is_stranger));
    if (strangers >= kMaxStrangers + sockets_.size()) {
      handshakes_.erase(
          std::find_if(handshakes_.begin(), handshakes_.end(), is_stranger));
    }
    handshakes_.emplace_back();
    handshakes_.back().socket = SecureSocket::server(
        std::move(socket),
        [this](std::string_view name) -> std::optional<store::Key> {
          if (!rank_above(name)) return std::nullopt;
          return store::derived(key_, {name});
        });
  }

  /// Returns the rank that connects to this one with the key of that name.
  std::optional<int> rank_above(std::string_view name) const {
    for (int from = rank_ + 1; from < ranks_; ++from) {
      if (name == name_of(from, rank_)) return from;
    }
    return std::nullopt;
  }

  void advance_handshake(Handshake& with) const {
    const Outcome outcome = with.socket.shake_hands();
    with.wants_write = outcome == Outcome::kWantsWrite;
    with.is_proven = outcome == Outcome::kDone;
    if (with.is_proven && !with.peer) {
      with.peer = rank_above(with.socket.key_name());
    } else if (outcome == Outcome::kRefused || outcome == Outcome::kClosed) {
      if (!with.peer) {
        with.is_over = true;  // a stranger
      } else if (outcome == Outcome::kRefused) {
        fail(*with.peer, "somebody else answers there");
      } else {
        // A rank that is flooded with connections may close any of them.
        with.socket = SecureSocket();
        with.again_at = Clock::now() + kPause;
      }
    }
  }

  void advance(Handshake& with) {
    if (!with.is_proven) advance_handshake(with);
    if (!with.is_proven) return;
    if (places_.front().data == kPlain) {
      const Outcome outcome = with.socket.leave_tls();
      with.wants_write = outcome == Outcome::kWantsWrite;
      if (outcome == Outcome::kClosed || outcome == Outcome::kRefused) {
        fail(*with.peer, "it closed the connection");
      }
      if (outcome != Outcome::kDone) return;
    }
    with.is_over = true;
    sockets_[static_cast<size_t>(*with.peer)] = std::move(with.socket);
  }

  const int rank_;
  const int ranks_;
  const store::Key& key_;
  const int listening_fd_;
  const Clock::time_point deadline_;
  std::vector<Place> places_;
  std::vector<Handshake> handshakes_;  // oldest first
  std::vector<SecureSocket> sockets_;  // by rank; closed for this rank
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

Listener::Listener(const std::string& host, const std::string& interface,
                   Data data)
    : data_(data) {
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
  return fmt::format("{} {} {} {}", address.host(), address.port(),
                     hex_of(key_),
                     data_ == Data::kEncrypted ? kEncrypted : kPlain);
}

std::vector<SecureSocket> Listener::connect(
    int rank, std::span<const std::string> announcements, Time deadline,
    const std::function<bool()>& is_over) {
  auto sockets = Connector(rank, announcements, key_, socket_.get(), deadline)
                     .run(is_over);
  socket_.close();
  return sockets;
}

}  // namespace lockstep::tcp
