#pragma once

#include <functional>
#include <memory>
#include <string>

namespace lockstep::cli {

/// Answers GET /metrics on the loopback address in a separate thread, until it
/// is destroyed. Many clients are served concurrently, and each has a deadline.
/// A request whose Host is not loopback is refused.
class MetricsEndpoint {
 public:
  /// A `port` of 0 means any free port. `metrics` is called for each request,
  /// in the endpoint's thread. Throws IoError if the port is in use.
  MetricsEndpoint(int port, std::function<std::string()> metrics);
  ~MetricsEndpoint();
  MetricsEndpoint(const MetricsEndpoint&) = delete;
  MetricsEndpoint& operator=(const MetricsEndpoint&) = delete;

  /// Returns "http://127.0.0.1:9400/metrics".
  std::string url() const;

 private:
  class Server;
  std::unique_ptr<Server> server_;
};

}  // namespace lockstep::cli
