#include "lockstep/tcp/listener.h"

#include <algorithm>
#include <array>
#include <cerrno>
#include <charconv>
#include <cstring>
#include <memory>
#include <netdb.h>
#include <optional>
#include <sys/epoll.h>
#include <sys/socket.h>
#include <thread>
#include <utility>

#include <fmt/format.h>
#include <fmt/ranges.h>

#include "lockstep/base/error.h"
#include "lockstep/base/event_loop.h"
#include "lockstep/base/numbers.h"
#include "lockstep/store/socket_address.h"
#include "lockstep/tcp/strangers.h"
#include "lockstep/transport/call.h"

namespace lockstep::tcp {
namespace {

using Clock = std::chrono::steady_clock;
using std::chrono::milliseconds;

constexpr milliseconds kAskEvery{500};
// Pause before a rank connects again to one that closed its connection.
constexpr milliseconds kPause{20};
constexpr const char* kFix =
    "look at that rank's output and at firewalls; GLOO_SOCKET_IFNAME names the "
    "network interface to use";
constexpr const char* kForCollectives = "collectives";
constexpr const char* kEncrypted = "encrypted";
constexpr const char* kPlain = "plain";

/// The content of an announcement.
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

std::vector<Place> places_of(std::span<const std::string> announcements) {
  std::vector<Place> places;
  for (const std::string& announcement : announcements) {
    places.push_back(place_of(static_cast<int>(places.size()), announcement));
  }
  const auto other = std::find_if(
      places.begin(), places.end(),
      [&](const Place& place) { return place.data != places.front().data; });
  if (other == places.end()) return places;
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

/// Connects this rank to all others: to those below it, while it accepts those
/// above it. All handshakes go on at once, so the ranks can't wait in a ring.
class Connector {
 public:
  Connector(int rank, const std::vector<Place>& places, int listening_fd,
            Data data, Clock::time_point deadline)
      : rank_(rank),
        ranks_(static_cast<int>(places.size())),
        places_(places),
        data_(data),
        deadline_(deadline),
        sockets_(places.size()),
        outgoing_(static_cast<size_t>(rank)),
        strangers_(loop_,
                   {.purpose = kForCollectives,
                    .rank = rank,
                    .ranks = ranks_,
                    .listening = listening_fd,
                    .key = places[static_cast<size_t>(rank)].key,
                    .data = data},
                   [this](int peer, store::SecureSocket socket) {
                     auto& place = sockets_[static_cast<size_t>(peer)];
                     const bool is_awaited = peer > rank_ && !place.is_open();
                     if (is_awaited) place = std::move(socket);
                   }) {}

  std::vector<store::SecureSocket> run(const std::function<bool()>& is_over) {
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
      for (int peer = 0; peer < rank_; ++peer) connect(peer);
      loop_.run_once(std::min(deadline_, Clock::now() + kAskEvery));
    }
    return std::move(sockets_);
  }

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

  std::vector<int> awaited_ranks() const {
    std::vector<int> awaited;
    for (int r = 0; r < ranks_; ++r) {
      const bool is_here = sockets_[static_cast<size_t>(r)].is_open();
      if (r != rank_ && !is_here) awaited.push_back(r);
    }
    return awaited;
  }

  void connect(int peer) {
    auto& handshake = outgoing_[static_cast<size_t>(peer)];
    if (handshake || sockets_[static_cast<size_t>(peer)].is_open()) return;
    const Place& place = places_[static_cast<size_t>(peer)];
    FileDescriptor socket = store::connect_to(place.address, deadline_);
    if (!socket.is_open()) fail(peer, std::strerror(errno));
    handshake = Handshake::with(kForCollectives, rank_, peer, std::move(socket),
                                place.key, data_);
    loop_.add(handshake->fd(), EPOLLIN,
              [this, peer](uint32_t) { advance(peer); });
    advance(peer);
  }

  void advance(int peer) {
    auto& handshake = outgoing_[static_cast<size_t>(peer)];
    const auto outcome = handshake->advance();
    if (outcome == Handshake::Outcome::kWantsRead ||
        outcome == Handshake::Outcome::kWantsWrite) {
      return loop_.change(handshake->fd(), handshake->events());
    }
    loop_.remove(handshake->fd());
    switch (outcome) {
      case Handshake::Outcome::kDone:
        sockets_[static_cast<size_t>(peer)] = handshake->take();
        return handshake.reset();
      case Handshake::Outcome::kRefused:
        return fail(peer, "somebody else answers there");
      case Handshake::Outcome::kClosed:
        // A rank that is flooded with connections may close any of them.
        std::this_thread::sleep_for(kPause);
        return handshake.reset();
      default:
        return;
    }
  }

  const int rank_;
  const int ranks_;
  const std::vector<Place>& places_;
  const Data data_;
  const Clock::time_point deadline_;
  std::vector<store::SecureSocket> sockets_;  // by rank; closed for this rank
  std::vector<std::optional<Handshake>> outgoing_;  // to the ranks below
  EventLoop loop_;
  Strangers strangers_;  // among them the ranks above
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

std::vector<store::SecureSocket> Listener::connect(
    int rank, std::span<const std::string> announcements, Time deadline,
    const std::function<bool()>& is_over) {
  const auto places = places_of(announcements);
  return Connector(rank, places, socket_.get(), data_, deadline).run(is_over);
}

Door Listener::door(std::span<const std::string> announcements) && {
  Door door{.listening = std::move(socket_),
            .connect = {},
            .keys = {},
            .data = data_};
  std::vector<store::SocketAddress> addresses;
  for (const Place& place : places_of(announcements)) {
    addresses.push_back(place.address);
    door.keys.push_back(place.key);
  }
  door.connect = [addresses](int peer) {
    return store::start_connecting(addresses[static_cast<size_t>(peer)]);
  };
  return door;
}

}  // namespace lockstep::tcp
