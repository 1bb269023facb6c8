#include "lockstep/launch/rendezvous/endpoint.h"

#include <chrono>

#include <fmt/format.h>

#include "lockstep/base/error.h"
#include "lockstep/base/host_identity.h"
#include "lockstep/base/numbers.h"
#include "lockstep/store/socket_address.h"

namespace lockstep::launch {

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
  if (!port.empty()) {  // `port` includes the colon
    const auto number =
        parse_number<uint16_t>(std::string_view(port).substr(1));
    is_good = is_good && port.front() == ':' && number;
    endpoint.port = number.value_or(0);
  }
  if (!is_good) {
    throw InvalidArgument("launch",
                          {.code = ErrorCode::kBadOption,
                           .what = "can't use " + option,
                           .expected = "HOST:PORT with a port up to 65535",
                           .got = "'" + text + "'"});
  }
  return endpoint;
}

bool is_this_host(const std::string& host) {
  if (host == host_name()) return true;
  const auto own_addresses = store::own_addresses();
  for (const auto& address : store::resolve(host, 0)) {
    if (address.is_loopback()) return true;
    for (const auto& own_address : own_addresses) {
      if (own_address.has_host_of(address)) return true;
    }
  }
  return false;
}

std::vector<FileDescriptor> listen_at(Endpoint& endpoint,
                                      const std::string& interface) {
  return store::listen_at(endpoint.host, endpoint.port, interface);
}

bool is_reachable(const Endpoint& endpoint, int timeout_ms) {
  const auto deadline =
      std::chrono::steady_clock::now() + std::chrono::milliseconds(timeout_ms);
  for (const auto& address : store::resolve(endpoint.host, endpoint.port)) {
    if (store::connect_to(address, deadline).is_open()) return true;
  }
  return false;
}

}  // namespace lockstep::launch
