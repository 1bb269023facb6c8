#include "lockstep/launch/endpoint.h"

#include <arpa/inet.h>
#include <array>
#include <cerrno>
#include <charconv>
#include <cstdlib>
#include <cstring>
#include <filesystem>
#include <ifaddrs.h>
#include <memory>
#include <netdb.h>
#include <netinet/in.h>
#include <poll.h>
#include <sys/socket.h>
#include <system_error>
#include <vector>

#include <climits>
#include <fmt/format.h>

#include "lockstep/base/error.h"
#include "lockstep/base/host_name.h"

namespace lockstep::launch {
namespace {

// A socket address of either family.
struct Address {
  sockaddr_storage bytes{};
  socklen_t length = 0;

  const sockaddr* get() const {
    return reinterpret_cast<const sockaddr*>(&bytes);
  }
  sockaddr* get() { return reinterpret_cast<sockaddr*>(&bytes); }
  int family() const { return bytes.ss_family; }
  const in_addr& v4() const {
    return reinterpret_cast<const sockaddr_in*>(&bytes)->sin_addr;
  }
  const in6_addr& v6() const {
    return reinterpret_cast<const sockaddr_in6*>(&bytes)->sin6_addr;
  }
  bool is_loopback() const {
    if (family() == AF_INET) return ntohl(v4().s_addr) >> 24 == 127;
    return IN6_IS_ADDR_LOOPBACK(&v6()) != 0;
  }
  bool has_host_of(const Address& other) const {
    if (family() != other.family()) return false;
    if (family() == AF_INET) return v4().s_addr == other.v4().s_addr;
    return std::memcmp(&v6(), &other.v6(), sizeof(in6_addr)) == 0;
  }
};

std::vector<Address> resolve(const std::string& host, int port) {
  addrinfo hints{};
  hints.ai_socktype = SOCK_STREAM;
  addrinfo* first = nullptr;
  const int error =
      ::getaddrinfo(host.c_str(), std::to_string(port).c_str(), &hints, &first);
  if (error != 0) return {};
  const std::unique_ptr<addrinfo, void (*)(addrinfo*)> owner(first,
                                                             ::freeaddrinfo);
  std::vector<Address> found;
  for (const addrinfo* info = first; info != nullptr; info = info->ai_next) {
    if (info->ai_family != AF_INET && info->ai_family != AF_INET6) continue;
    Address address;
    std::memcpy(&address.bytes, info->ai_addr, info->ai_addrlen);
    address.length = info->ai_addrlen;
    found.push_back(address);
  }
  return found;
}

std::vector<Address> own_addresses() {
  ifaddrs* first = nullptr;
  if (::getifaddrs(&first) != 0) return {};
  const std::unique_ptr<ifaddrs, void (*)(ifaddrs*)> owner(first,
                                                           ::freeifaddrs);
  std::vector<Address> found;
  for (const ifaddrs* entry = first; entry; entry = entry->ifa_next) {
    if (entry->ifa_addr == nullptr) continue;
    const int family = entry->ifa_addr->sa_family;
    if (family != AF_INET && family != AF_INET6) continue;
    Address address;
    address.length =
        family == AF_INET ? sizeof(sockaddr_in) : sizeof(sockaddr_in6);
    std::memcpy(&address.bytes, entry->ifa_addr, address.length);
    found.push_back(address);
  }
  return found;
}

Address any_address(int family, int port) {
  Address address;
  address.bytes.ss_family = static_cast<sa_family_t>(family);
  const auto number = htons(static_cast<uint16_t>(port));
  if (family == AF_INET6) {
    auto* v6 = reinterpret_cast<sockaddr_in6*>(&address.bytes);
    v6->sin6_addr = in6addr_any;
    v6->sin6_port = number;
    address.length = sizeof *v6;
  } else {
    auto* v4 = reinterpret_cast<sockaddr_in*>(&address.bytes);
    v4->sin_port = number;
    address.length = sizeof *v4;
  }
  return address;
}

// In the order in which they are tried.
std::vector<Address> addresses_to_listen_at(const Endpoint& endpoint) {
  std::vector<Address> loopback;
  for (const auto& address : resolve(endpoint.host, endpoint.port)) {
    if (!address.is_loopback()) {
      loopback.clear();
      break;
    }
    loopback.insert(
        address.family() == AF_INET ? loopback.begin() : loopback.end(),
        address);
  }
  if (!loopback.empty()) return loopback;
  return {any_address(AF_INET6, endpoint.port),
          any_address(AF_INET, endpoint.port)};
}

int port_of(int fd) {
  Address address;
  address.length = sizeof address.bytes;
  ::getsockname(fd, address.get(), &address.length);
  const auto* v4 = reinterpret_cast<const sockaddr_in*>(&address.bytes);
  return ntohs(v4->sin_port);  // at the same place in both families
}

// Of the other end of a connection; 0 if `fd` is none.
int peer_port_of(int fd) {
  Address address;
  address.length = sizeof address.bytes;
  if (::getpeername(fd, address.get(), &address.length) != 0) return 0;
  if (address.family() != AF_INET && address.family() != AF_INET6) return 0;
  const auto* v4 = reinterpret_cast<const sockaddr_in*>(&address.bytes);
  return ntohs(v4->sin_port);
}

// 0, or the error.
int try_listen(const Address& address, FileDescriptor& socket) {
  socket =
      FileDescriptor(::socket(address.family(), SOCK_STREAM | SOCK_CLOEXEC, 0));
  if (!socket.is_open()) return errno;
  const int on = 1;
  const int off = 0;
  ::setsockopt(socket.get(), SOL_SOCKET, SO_REUSEADDR, &on, sizeof on);
  if (address.family() == AF_INET6) {
    ::setsockopt(socket.get(), IPPROTO_IPV6, IPV6_V6ONLY, &off, sizeof off);
  }
  if (::bind(socket.get(), address.get(), address.length) != 0 ||
      ::listen(socket.get(), SOMAXCONN) != 0) {
    return errno;
  }
  return 0;
}

bool connects(const Address& address, int timeout_ms) {
  const FileDescriptor socket(::socket(
      address.family(), SOCK_STREAM | SOCK_CLOEXEC | SOCK_NONBLOCK, 0));
  if (!socket.is_open()) return false;
  if (::connect(socket.get(), address.get(), address.length) == 0) return true;
  if (errno != EINPROGRESS) return false;
  pollfd ready{socket.get(), POLLOUT, 0};
  if (::poll(&ready, 1, timeout_ms) <= 0) return false;
  int error = 0;
  socklen_t length = sizeof error;
  ::getsockopt(socket.get(), SOL_SOCKET, SO_ERROR, &error, &length);
  return error == 0;
}

}  // namespace

std::string Endpoint::text() const {
  const bool is_v6 = host.find(':') != std::string::npos;
  return is_v6 ? fmt::format("[{}]:{}", host, port)
               : fmt::format("{}:{}", host, port);
}

Endpoint parse_endpoint(const std::string& option, const std::string& text,
                        int default_port) {
  Endpoint endpoint{.host = text, .port = default_port};
  std::string port;
  const auto bracket = text.find(']');
  if (text.starts_with('[') && bracket != std::string::npos) {
    endpoint.host = text.substr(1, bracket - 1);
    if (bracket + 1 < text.size()) port = text.substr(bracket + 1);
  } else if (const auto colon = text.find(':');
             colon != std::string::npos && colon == text.rfind(':')) {
    endpoint.host = text.substr(0, colon);
    port = text.substr(colon);
  }
  bool is_good = !endpoint.host.empty();
  if (!port.empty()) {  // with its colon
    const char* end = port.data() + port.size();
    const auto [stop, code] =
        std::from_chars(port.data() + 1, end, endpoint.port);
    is_good = is_good && port.front() == ':' && code == std::errc() &&
              stop == end && endpoint.port >= 0 && endpoint.port <= 65535;
  }
  if (!is_good) {
    throw InvalidArgument("launch",
                          {.what = "can't use " + option,
                           .expected = "HOST:PORT with a port up to 65535",
                           .got = "'" + text + "'"});
  }
  return endpoint;
}

bool is_this_host(const std::string& host) {
  if (host == host_name()) return true;
  const auto own = own_addresses();
  for (const auto& address : resolve(host, 0)) {
    if (address.is_loopback()) return true;
    for (const auto& mine : own) {
      if (mine.has_host_of(address)) return true;
    }
  }
  return false;
}

FileDescriptor listen_at(Endpoint& endpoint) {
  int error = 0;
  for (const auto& address : addresses_to_listen_at(endpoint)) {
    FileDescriptor socket;
    error = try_listen(address, socket);
    if (error == 0) {
      endpoint.port = port_of(socket.get());
      return socket;
    }
    if (error == EADDRINUSE) return {};
  }
  throw LaunchError({.what = "can't listen at " + endpoint.text(),
                     .got = std::strerror(error),
                     .fix = "choose another address or port"});
}

void limit_waits(int port, int seconds) {
  const timeval limit{.tv_sec = seconds, .tv_usec = 0};
  std::error_code ignored;
  for (const auto& entry :
       std::filesystem::directory_iterator("/proc/self/fd", ignored)) {
    const int fd = std::atoi(entry.path().filename().c_str());
    if (peer_port_of(fd) != port) continue;
    ::setsockopt(fd, SOL_SOCKET, SO_RCVTIMEO, &limit, sizeof limit);
    ::setsockopt(fd, SOL_SOCKET, SO_SNDTIMEO, &limit, sizeof limit);
  }
}

bool is_reachable(const Endpoint& endpoint, int timeout_ms) {
  for (const auto& address : resolve(endpoint.host, endpoint.port)) {
    if (connects(address, timeout_ms)) return true;
  }
  return false;
}

}  // namespace lockstep::launch
