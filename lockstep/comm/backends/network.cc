#include "lockstep/comm/backends/network.h"

#include <array>
#include <cerrno>
#include <cstring>
#include <memory>
#include <netdb.h>
#include <sys/socket.h>
#include <unistd.h>

#include <fmt/format.h>

#include "lockstep/base/error.h"

namespace lockstep {
namespace {

/// A datagram socket that is connected has the address it would send from.
std::string address_towards(const addrinfo& peer) {
  const int fd =
      ::socket(peer.ai_family, SOCK_DGRAM | SOCK_CLOEXEC, peer.ai_protocol);
  if (fd < 0) return {};
  sockaddr_storage own{};
  socklen_t size = sizeof(own);
  std::array<char, NI_MAXHOST> text{};
  const bool is_known =
      ::connect(fd, peer.ai_addr, peer.ai_addrlen) == 0 &&
      ::getsockname(fd, reinterpret_cast<sockaddr*>(&own), &size) == 0 &&
      ::getnameinfo(reinterpret_cast<sockaddr*>(&own), size, text.data(),
                    text.size(), nullptr, 0, NI_NUMERICHOST) == 0;
  ::close(fd);
  return is_known ? text.data() : std::string();
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

}  // namespace lockstep
