#include "lockstep/cli/top/metrics_endpoint.h"

#include <chrono>
#include <httplib.h>
#include <thread>
#include <utility>

#include <fmt/format.h>

#include "lockstep/base/error.h"

namespace lockstep::cli {
namespace {

constexpr const char* kLoopback = "127.0.0.1";

}  // namespace

class MetricsEndpoint::Server {
 public:
  Server(int port, std::function<std::string()> metrics) {
    // Nobody who connects and says nothing keeps it from ending.
    server_.set_read_timeout(2);
    server_.set_write_timeout(2);
    server_.set_keep_alive_max_count(1);
    server_.new_task_queue = [] { return new httplib::ThreadPool(2); };
    server_.Get("/metrics",
                [metrics = std::move(metrics)](const httplib::Request&,
                                               httplib::Response& response) {
                  response.set_content(metrics(), "text/plain; version=0.0.4");
                });
    port_ = port == 0 ? server_.bind_to_any_port(kLoopback)
            : server_.bind_to_port(kLoopback, port) ? port
                                                    : -1;
    if (port_ < 0) {
      throw IoError(
          {.code = ErrorCode::kBadOption,
           .what = fmt::format("can't listen on {} port {}", kLoopback, port),
           .expected = "a port that is free",
           .fix = "name another one, or 0 for any"});
    }
    thread_ = std::thread([this] { server_.listen_after_bind(); });
    // stop() does nothing before.
    while (!server_.is_running()) {
      std::this_thread::sleep_for(std::chrono::milliseconds(1));
    }
  }
  ~Server() {
    server_.stop();
    thread_.join();
  }

  int port() const { return port_; }

 private:
  httplib::Server server_;
  int port_ = -1;
  std::thread thread_;
};

MetricsEndpoint::MetricsEndpoint(int port, std::function<std::string()> metrics)
    : server_(std::make_unique<Server>(port, std::move(metrics))) {}

MetricsEndpoint::~MetricsEndpoint() = default;

std::string MetricsEndpoint::url() const {
  return fmt::format("http://{}:{}/metrics", kLoopback, server_->port());
}

}  // namespace lockstep::cli
