#pragma once

#include <chrono>
#include <netinet/in.h>
#include <string>
#include <sys/socket.h>
#include <vector>

#include "lockstep/base/file_descriptor.h"

namespace lockstep::store {

/// An IPv4 or IPv6 address with a port.
class SocketAddress {
 public:
  SocketAddress() = default;
  SocketAddress(const sockaddr* address, socklen_t length);
  static SocketAddress from_socket(int fd);
  static SocketAddress from_peer(int fd);

  int family() const { return bytes_.ss_family; }
  const sockaddr* get() const {
    return reinterpret_cast<const sockaddr*>(&bytes_);
  }
  socklen_t length() const { return length_; }
  int port() const;
  void set_port(int port);
  bool is_loopback() const;
  /// Returns whether other hosts can reach the address: it is neither loopback
  /// nor link-local (fe80::).
  bool is_routable() const;
  bool has_host_of(const SocketAddress& other) const;
  std::string host() const;  ///< "10.0.0.1", "::1"
  std::string text() const;  ///< "10.0.0.1:80", "[::1]:80"

 private:
  sockaddr_storage bytes_{};
  socklen_t length_ = 0;
};

/// Returns the addresses of `host`, which is a name or an address. Returns an
/// empty list if it can't be resolved.
std::vector<SocketAddress> resolve(const std::string& host, int port);
/// Returns the addresses of one interface (eth0), or of all interfaces.
std::vector<SocketAddress> own_addresses(const std::string& interface = "");
/// Returns the address at which processes of this host reach each other:
/// "127.0.0.1", or "::1" if there is only IPv6.
std::string loopback_host();
/// Returns whether all addresses of `host` are loopback addresses.
bool is_loopback_name(const std::string& host);

/// Opens sockets that listen at the addresses of `interface` or, if it is
/// empty, at the addresses of `host` that belong to this machine. Never listens
/// on all interfaces. Replaces a `port` of 0 by a free port. Returns an empty
/// list if the port is in use. Throws CommError if no address of `host` belongs
/// to this machine.
std::vector<FileDescriptor> listen_at(const std::string& host, int& port,
                                      const std::string& interface = "");

/// Begins to connect to `address`, and does not wait. Returns a closed
/// descriptor if that failed. The socket is non-blocking and has TCP_NODELAY
/// set.
FileDescriptor start_connecting(const SocketAddress& address);

/// Connects to `address`. Returns a closed descriptor if that did not succeed
/// before the deadline. The socket is as that of start_connecting().
FileDescriptor connect_to(const SocketAddress& address,
                          std::chrono::steady_clock::time_point deadline);

}  // namespace lockstep::store
