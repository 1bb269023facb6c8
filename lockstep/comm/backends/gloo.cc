#include <array>
#include <cerrno>
#include <cstdlib>
#include <cstring>
#include <memory>
#include <mutex>
#include <netdb.h>
#include <sys/socket.h>
#include <unistd.h>

#include <fmt/format.h>
#include <torch/csrc/distributed/c10d/ProcessGroupGloo.hpp>

#include "lockstep/base/blocked_sigpipe.h"
#include "lockstep/base/env.h"
#include "lockstep/base/error.h"
#include "lockstep/comm/backends/backends.h"

namespace lockstep {
namespace {

/// Returns the address from which this host would send to `peer`, which a
/// datagram socket has once it is connected. Empty if there is no route to
/// `peer`.
std::string address_towards(const addrinfo& peer) {
  const int fd =
      ::socket(peer.ai_family, SOCK_DGRAM | SOCK_CLOEXEC, peer.ai_protocol);
  if (fd < 0) return {};
  sockaddr_storage address{};
  socklen_t size = sizeof(address);
  std::array<char, NI_MAXHOST> text{};
  const bool is_known =
      ::connect(fd, peer.ai_addr, peer.ai_addrlen) == 0 &&
      ::getsockname(fd, reinterpret_cast<sockaddr*>(&address), &size) == 0 &&
      ::getnameinfo(reinterpret_cast<sockaddr*>(&address), size, text.data(),
                    text.size(), nullptr, 0, NI_NUMERICHOST) == 0;
  ::close(fd);
  return is_known ? text.data() : std::string();
}

}  // namespace

// c10d records all Gloo operations of a process, and writes the record outside
// of its lock. Groups of several threads (ranks of spawn(), or a rank that
// sends while its queue works) corrupt it. It can only be disabled by an
// environment variable, because the recorder is hidden in libtorch_cpu.
void prepare_gloo() {
  static std::once_flag once;
  std::call_once(
      once, [] { ::setenv("TORCH_FR_BUFFER_SIZE", "0", /*overwrite=*/0); });
}

c10::intrusive_ptr<c10d::Backend> make_gloo_backend(
    const BackendOptions& options) {
  prepare_gloo();
  // The threads that Gloo starts here inherit the signal mask. They write to
  // sockets.
  const BlockedSigpipe blocked;
  using Gloo = c10d::ProcessGroupGloo;
  auto gloo_options = Gloo::Options::create(options.timeout);
  const auto interface = env("GLOO_SOCKET_IFNAME");
  gloo_options->devices.push_back(
      interface ? Gloo::createDeviceForInterface(*interface)
                : Gloo::createDeviceForHostname(
                      local_address_towards(options.master_addr)));
  return c10::make_intrusive<Gloo>(options.store, options.rank, options.size,
                                   gloo_options);
}

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
