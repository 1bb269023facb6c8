#include "lockstep/store/socket_address.h"

#include <algorithm>
#include <arpa/inet.h>
#include <array>
#include <cerrno>
#include <cstring>
#include <ifaddrs.h>
#include <memory>
#include <netdb.h>
#include <netinet/tcp.h>
#include <poll.h>

#include <fmt/format.h>

#include "lockstep/base/error.h"
#include "lockstep/base/event_loop.h"
#include "lockstep/base/out_of_resources.h"

namespace lockstep::store {
namespace {

const in_addr& v4_of(const sockaddr* address) {
  return reinterpret_cast<const sockaddr_in*>(address)->sin_addr;
}

const in6_addr& v6_of(const sockaddr* address) {
  return reinterpret_cast<const sockaddr_in6*>(address)->sin6_addr;
}

// Returns the addresses to listen at, in the order in which they are tried.
std::vector<SocketAddress> listening_addresses(const std::string& host,
                                               int port,
                                               const std::string& interface) {
  std::vector<SocketAddress> addresses;
  if (!interface.empty()) {
    for (SocketAddress address : own_addresses(interface)) {
      if (!address.is_routable() && !address.is_loopback()) continue;
      address.set_port(port);
      addresses.push_back(address);
    }
    if (!addresses.empty()) return addresses;
    throw CommError(
        {.code = ErrorCode::kCannotListen,
         .what = "can't listen at the interface '" + interface + "'",
         .expected = "one with an address, as `ip addr` shows them",
         .got = "none of that name"});
  }
  const auto interface_addresses = own_addresses();
  for (const auto& address : resolve(host, port)) {
    const bool is_own = std::any_of(
        interface_addresses.begin(), interface_addresses.end(),
        [&](const auto& own_address) {
          // If 127.0.0.1 is this host, all of 127.0.0.0/8 is.
          return own_address.has_host_of(address) ||
                 (own_address.is_loopback() && address.is_loopback() &&
                  own_address.family() == address.family());
        });
    const bool is_new = std::none_of(
        addresses.begin(), addresses.end(),
        [&](const auto& known) { return known.has_host_of(address); });
    if (is_own && is_new) addresses.push_back(address);
  }
  if (addresses.empty()) {
    throw CommError(
        {.code = ErrorCode::kCannotListen,
         .what = "can't listen at '" + host + "'",
         .expected = "a name or an address that an interface of this host has",
         .got = "none of them",
         .fix = "name one that `ip addr` shows, or the interface: --rdzv-conf "
                "interface=eth0 (GLOO_SOCKET_IFNAME=eth0 without an agent)"});
  }
  std::stable_sort(addresses.begin(), addresses.end(), [](auto& a, auto& b) {
    return a.family() == AF_INET && b.family() != AF_INET;
  });
  // One address is enough if only this machine can reach it.
  if (std::all_of(addresses.begin(), addresses.end(),
                  [](const auto& address) { return address.is_loopback(); })) {
    addresses.resize(1);
  }
  return addresses;
}

// Returns 0 or an errno.
int try_listen(const SocketAddress& address, FileDescriptor& socket) {
  socket = FileDescriptor(::socket(
      address.family(), SOCK_STREAM | SOCK_CLOEXEC | SOCK_NONBLOCK, 0));
  if (!socket.is_open()) return errno;
  const int on = 1;
  ::setsockopt(socket.get(), SOL_SOCKET, SO_REUSEADDR, &on, sizeof on);
  if (address.family() == AF_INET6) {
    ::setsockopt(socket.get(), IPPROTO_IPV6, IPV6_V6ONLY, &on, sizeof on);
  }
  if (::bind(socket.get(), address.get(), address.length()) != 0 ||
      ::listen(socket.get(), SOMAXCONN) != 0) {
    return errno;
  }
  return 0;
}

using Name = int(int, sockaddr*, socklen_t*);

SocketAddress address_by(Name* name, int fd) {
  sockaddr_storage bytes{};
  socklen_t length = sizeof bytes;
  auto* address = reinterpret_cast<sockaddr*>(&bytes);
  if (name(fd, address, &length) != 0) return {};
  return {address, std::min<socklen_t>(length, sizeof bytes)};
}

}  // namespace

SocketAddress::SocketAddress(const sockaddr* address, socklen_t length)
    : length_(length) {
  std::memcpy(&bytes_, address, length);
}

SocketAddress SocketAddress::from_socket(int fd) {
  return address_by(::getsockname, fd);
}

SocketAddress SocketAddress::from_peer(int fd) {
  return address_by(::getpeername, fd);
}

int SocketAddress::port() const {
  // The port is at the same offset for IPv4 and IPv6.
  return ntohs(reinterpret_cast<const sockaddr_in*>(&bytes_)->sin_port);
}

void SocketAddress::set_port(int port) {
  reinterpret_cast<sockaddr_in*>(&bytes_)->sin_port =
      htons(static_cast<uint16_t>(port));
}

bool SocketAddress::is_loopback() const {
  if (family() == AF_INET) return ntohl(v4_of(get()).s_addr) >> 24 == 127;
  return family() == AF_INET6 && IN6_IS_ADDR_LOOPBACK(&v6_of(get()));
}

bool SocketAddress::is_routable() const {
  if (is_loopback()) return false;
  return family() != AF_INET6 || !IN6_IS_ADDR_LINKLOCAL(&v6_of(get()));
}

bool SocketAddress::has_host_of(const SocketAddress& other) const {
  if (family() != other.family()) return false;
  if (family() == AF_INET) {
    return v4_of(get()).s_addr == v4_of(other.get()).s_addr;
  }
  return std::memcmp(&v6_of(get()), &v6_of(other.get()), sizeof(in6_addr)) == 0;
}

std::string SocketAddress::host() const {
  std::array<char, NI_MAXHOST> text{};
  const int error = ::getnameinfo(get(), length_, text.data(), text.size(),
                                  nullptr, 0, NI_NUMERICHOST);
  return error == 0 ? text.data() : "?";
}

std::string SocketAddress::text() const {
  return family() == AF_INET6 ? fmt::format("[{}]:{}", host(), port())
                              : fmt::format("{}:{}", host(), port());
}

std::vector<SocketAddress> resolve(const std::string& host, int port) {
  addrinfo hints{};
  hints.ai_socktype = SOCK_STREAM;
  addrinfo* first = nullptr;
  if (::getaddrinfo(host.c_str(), std::to_string(port).c_str(), &hints,
                    &first) != 0) {
    return {};
  }
  const std::unique_ptr<addrinfo, void (*)(addrinfo*)> owner(first,
                                                             ::freeaddrinfo);
  std::vector<SocketAddress> found;
  for (const addrinfo* info = first; info != nullptr; info = info->ai_next) {
    if (info->ai_family != AF_INET && info->ai_family != AF_INET6) continue;
    found.emplace_back(info->ai_addr, info->ai_addrlen);
  }
  return found;
}

std::vector<SocketAddress> own_addresses(const std::string& interface) {
  ifaddrs* first = nullptr;
  if (::getifaddrs(&first) != 0) return {};
  const std::unique_ptr<ifaddrs, void (*)(ifaddrs*)> owner(first,
                                                           ::freeifaddrs);
  std::vector<SocketAddress> found;
  for (const ifaddrs* entry = first; entry; entry = entry->ifa_next) {
    if (entry->ifa_addr == nullptr) continue;
    if (!interface.empty() && interface != entry->ifa_name) continue;
    const int family = entry->ifa_addr->sa_family;
    if (family != AF_INET && family != AF_INET6) continue;
    found.emplace_back(entry->ifa_addr, family == AF_INET
                                            ? sizeof(sockaddr_in)
                                            : sizeof(sockaddr_in6));
  }
  return found;
}

std::string loopback_host() {
  std::string found = "127.0.0.1";
  for (const SocketAddress& address : own_addresses()) {
    if (!address.is_loopback()) continue;
    if (address.family() == AF_INET) return "127.0.0.1";
    found = "::1";
  }
  return found;
}

bool is_loopback_name(const std::string& host) {
  const auto found = resolve(host, 0);
  return !found.empty() &&
         std::all_of(found.begin(), found.end(),
                     [](const auto& address) { return address.is_loopback(); });
}

std::vector<FileDescriptor> listen_at(const std::string& host, int& port,
                                      const std::string& interface) {
  std::vector<FileDescriptor> sockets;
  int error = 0;
  for (SocketAddress address : listening_addresses(host, port, interface)) {
    address.set_port(port);  // the free port that the first socket got
    FileDescriptor socket;
    error = try_listen(address, socket);
    if (error == EADDRINUSE) return {};
    if (error != 0) continue;
    port = SocketAddress::from_socket(socket.get()).port();
    sockets.push_back(std::move(socket));
  }
  if (!sockets.empty()) return sockets;
  throw CommError({.code = ErrorCode::kCannotListen,
                   .what = fmt::format("can't listen at {}:{}", host, port),
                   .got = std::strerror(error),
                   .fix = "choose another address or port"});
}

FileDescriptor start_connecting(const SocketAddress& address) {
  FileDescriptor socket(::socket(
      address.family(), SOCK_STREAM | SOCK_CLOEXEC | SOCK_NONBLOCK, 0));
  if (!socket.is_open() && is_out_of_resources(errno)) {
    throw OutOfResources("comm", "can't connect to " + address.text(), errno);
  }
  if (!socket.is_open()) return {};
  const int on = 1;
  ::setsockopt(socket.get(), IPPROTO_TCP, TCP_NODELAY, &on, sizeof on);
  if (::connect(socket.get(), address.get(), address.length()) != 0 &&
      errno != EINPROGRESS) {
    return {};
  }
  return socket;
}

FileDescriptor connect_to(const SocketAddress& address,
                          std::chrono::steady_clock::time_point deadline) {
  FileDescriptor socket = start_connecting(address);
  if (!socket.is_open()) return {};
  if (!wait_for(socket.get(), POLLOUT, deadline)) {
    errno = ETIMEDOUT;
    return {};
  }
  int error = 0;
  socklen_t length = sizeof error;
  ::getsockopt(socket.get(), SOL_SOCKET, SO_ERROR, &error, &length);
  if (error != 0) {
    errno = error;
    return {};
  }
  // A TCP socket may connect to itself if no process listens at a port.
  if (SocketAddress::from_socket(socket.get()).text() == address.text())
    return {};
  return socket;
}

}  // namespace lockstep::store
