#pragma once

#include <string>
#include <vector>

#include "lockstep/base/file_descriptor.h"

namespace lockstep::launch {

/// Where the job's store listens.
struct Endpoint {
  std::string host;
  int port = 0;

  std::string text() const;  ///< "host:port", "[::1]:port"
};

/// "host", "host:port", "[::1]:port". Throws InvalidArgument naming `option`.
Endpoint parse_endpoint(const std::string& option, const std::string& text,
                        int default_port);

/// Whether `host` is a name or an address of this machine.
bool is_this_host(const std::string& host);

/// Sockets that listen at `endpoint`, whose port becomes a free one if it is
/// 0; none if the port is taken. They listen where the name stands for this
/// host, or, if one is named, at the addresses of `interface`; never on all
/// interfaces. Throws CommError.
std::vector<FileDescriptor> listen_at(Endpoint& endpoint,
                                      const std::string& interface = "");

/// Whether something listens at `endpoint`.
bool is_reachable(const Endpoint& endpoint, int timeout_ms);

}  // namespace lockstep::launch
