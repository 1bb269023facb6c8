#pragma once

#include <chrono>
#include <netinet/in.h>
#include <string>
#include <sys/socket.h>
#include <vector>

#include "lockstep/base/file_descriptor.h"

namespace lockstep::store {

/// An address of IPv4 or IPv6 with a port.
class SocketAddress {
 public:
  SocketAddress() = default;
  SocketAddress(const sockaddr* address, socklen_t length);
  static SocketAddress of_socket(int fd);
  static SocketAddress of_peer(int fd);

  int family() const { return bytes_.ss_family; }
  const sockaddr* get() const {
    return reinterpret_cast<const sockaddr*>(&bytes_);
  }
  socklen_t length() const { return length_; }
  int port() const;
  void set_port(int port);
  bool is_loopback() const;
  /// Whether other hosts can reach it: not loopback, and not link-local
  /// (fe80::).
  bool is_routable() const;
  bool has_host_of(const SocketAddress& other) const;
  std::string host() const;  ///< "10.0.0.1", "::1"
  std::string text() const;  ///< "10.0.0.1:80", "[::1]:80"

 private:
  sockaddr_storage bytes_{};
  socklen_t length_ = 0;
};

/// The addresses of `host`, a name or an address; empty if it can't be
/// resolved.
std::vector<SocketAddress> resolve(const std::string& host, int port);
/// The addresses of one interface (eth0), or of all.
std::vector<SocketAddress> own_addresses(const std::string& interface = "");
/// The address by which processes of this host reach each other: "127.0.0.1",
/// or "::1" where there is only IPv6.
std::string loopback_host();
/// Whether all addresses of `host` are loopback addresses.
bool is_loopback_name(const std::string& host);

/// Sockets that listen at those addresses of `host` that are this machine's or,
/// if it is given, at the addresses of `interface`; never on all interfaces. A
/// `port` of 0 is replaced by a free one. Empty if the port is in use. Throws
/// CommError if no address of `host` is one of this machine.
std::vector<FileDescriptor> listen_at(const std::string& host, int& port,
                                      const std::string& interface = "");

/// A connection, or a closed descriptor if none was made before the deadline.
/// It is non-blocking and without Nagle's delay.
FileDescriptor connect_to(const SocketAddress& address,
                          std::chrono::steady_clock::time_point deadline);

}  // namespace lockstep::store
