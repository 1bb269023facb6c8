#pragma once

#include <functional>
#include <memory>
#include <string>

namespace lockstep::cli {

/// Answers GET /metrics on the loopback address in a thread of its own, until
/// it is destroyed. Many clients are served side by side, and each of them has
/// a deadline. A request for any other Host than loopback is refused.
class MetricsEndpoint {
 public:
  /// `port` 0: any that is free. `metrics` is called for each request, in the
  /// endpoint's thread. Throws IoError if the port is taken.
  MetricsEndpoint(int port, std::function<std::string()> metrics);
  ~MetricsEndpoint();
  MetricsEndpoint(const MetricsEndpoint&) = delete;
  MetricsEndpoint& operator=(const MetricsEndpoint&) = delete;

  /// "http://127.0.0.1:9400/metrics".
  std::string url() const;

 private:
  class Server;
  std::unique_ptr<Server> server_;
};

}  // namespace lockstep::cli
