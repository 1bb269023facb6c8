// `lockstep top --metrics`, and malicious clients.
// Tier: nightly, by case. A tool.

#include <chrono>
#include <csignal>
#include <cstdlib>
#include <optional>
#include <poll.h>
#include <string>
#include <sys/socket.h>
#include <vector>

#include <gtest/gtest.h>

#include "lockstep/monitor/job_folder.h"
#include "lockstep/store/socket_address.h"
#include "tests/base/temporary_folder.h"
#include "tests/cli/processes.h"
#include "tests/cli/program.h"
#include "tests/monitor/statuses.h"

namespace lockstep::metrics_test {
namespace {

using Clock = std::chrono::steady_clock;

constexpr std::chrono::seconds kDeadline{60};

class Metrics : public ::testing::Test {
 protected:
  // Jobs of other users are not shown.
  Metrics()
      : top_({"top", folder_.path("out"), "--metrics", "0"},
             {{"XDG_RUNTIME_DIR", folder_.path()}}) {}

  void SetUp() override {
    ASSERT_TRUE(top_.wait_for_output("/metrics\n")) << top_.err();
    const std::string key = "http://127.0.0.1:";
    const size_t at = top_.out().find(key);
    ASSERT_NE(at, std::string::npos) << top_.out();
    port_ = std::atoi(top_.out().c_str() + at + key.size());
  }
  void TearDown() override {
    top_.send(SIGTERM);
    EXPECT_EQ(top_.wait(), 0);
  }

  FileDescriptor connect() const {
    FileDescriptor socket = store::connect_to(
        store::resolve("127.0.0.1", port_).at(0), Clock::now() + kDeadline);
    EXPECT_TRUE(socket.is_open());
    return socket;
  }
  static bool send(const FileDescriptor& socket, const std::string& text) {
    return ::send(socket.get(), text.data(), text.size(), MSG_NOSIGNAL) ==
           static_cast<ssize_t>(text.size());
  }
  /// Returns everything that arrives until the other end closes, or nothing if
  /// it doesn't close in time.
  static std::optional<std::string> read_all(const FileDescriptor& socket) {
    std::string text;
    const auto deadline = Clock::now() + kDeadline;
    while (Clock::now() < deadline) {
      pollfd ready{socket.get(), POLLIN, 0};
      ::poll(&ready, 1, 1000);
      char buffer[4096];
      const ssize_t got = ::recv(socket.get(), buffer, sizeof buffer, 0);
      if (got == 0 || (got < 0 && errno == ECONNRESET)) return text;
      if (got > 0) text.append(buffer, static_cast<size_t>(got));
    }
    return std::nullopt;
  }
  std::string ask(const std::string& request) const {
    const FileDescriptor socket = connect();
    EXPECT_TRUE(send(socket, request));
    return read_all(socket).value_or("no answer in time");
  }
  std::string host(const std::string& name) const {
    return name + ":" + std::to_string(port_);
  }
  std::string get(const std::string& path, const std::string& host) const {
    return ask("GET " + path + " HTTP/1.1\r\nHost: " + host + "\r\n\r\n");
  }

  TemporaryFolder folder_;
  monitor::StatusFile file_{"job", folder_.path("out"), 0};
  Program top_;
  int port_ = 0;
};

TEST_F(Metrics, AreEmptyUntilTheRunBegins) {
  const std::string before = get("/metrics", host("127.0.0.1"));
  EXPECT_TRUE(before.starts_with("HTTP/1.1 200 OK\r\n")) << before;
  EXPECT_TRUE(before.ends_with("\r\n\r\n")) << before;
  file_.write(monitor::status_of_rank(0));
  EXPECT_PRED2(contains, get("/metrics", host("127.0.0.1")),
               "device=\"cpu:0\"");
}

TEST_F(Metrics, OfAFolderThatDoesNotExistAreAnError) {
  Program top({"top", folder_.path("other"), "--metrics", "0"});
  EXPECT_NE(top.wait(), 0);
  EXPECT_PRED2(contains, top.err(), folder_.path("other"));
}

TEST_F(Metrics, AreServedAsPrometheusReadsThem) {
  file_.write(monitor::status_of_rank(0));
  const std::string answer = get("/metrics", host("127.0.0.1"));
  const size_t body = answer.find("\r\n\r\n");
  ASSERT_NE(body, std::string::npos) << answer;
  EXPECT_TRUE(answer.starts_with("HTTP/1.1 200 OK\r\n")) << answer;
  EXPECT_PRED2(contains, answer, "Content-Type: text/plain; version=0.0.4\r\n");
  EXPECT_PRED2(contains, answer,
               "Content-Length: " + std::to_string(answer.size() - body - 4));
  EXPECT_PRED2(contains, answer, "# TYPE lockstep_steps_total counter");
  EXPECT_PRED2(contains, answer, "device=\"cpu:0\"");
  EXPECT_PRED2(contains, get("/metrics?a=b", host("localhost")), " 200 OK");
  EXPECT_PRED2(contains, get("/other", host("127.0.0.1")), " 404 ");
  const std::string head =
      ask("HEAD /metrics HTTP/1.1\r\nhost:" + host("[::1]") + " \r\n\r\n");
  EXPECT_PRED2(contains, head, " 200 OK");
  EXPECT_TRUE(head.ends_with("\r\n\r\n")) << head;
}

TEST_F(Metrics, AreNotForOtherHostsOrMethods) {
  // A name that an attacker made to resolve to 127.0.0.1.
  for (const std::string& other :
       {host("evil.example"), host("localhost.evil.example"), host(""),
        std::string("localhost"), std::string("127.0.0.1:1"), std::string()}) {
    EXPECT_PRED2(contains, get("/metrics", other), " 403 ");
  }
  EXPECT_PRED2(contains, ask("GET /metrics HTTP/1.1\r\n\r\n"), " 403 ");
  EXPECT_PRED2(contains,
               ask("GET /metrics HTTP/1.1\r\nHost: " + host("localhost") +
                   "\r\nHost: evil.example\r\n\r\n"),
               " 403 ");
  EXPECT_PRED2(
      contains,
      ask("POST /metrics HTTP/1.1\r\nHost: " + host("localhost") + "\r\n\r\n"),
      " 405 ");
  EXPECT_PRED2(contains, ask("garbage\r\n\r\n"), " 400 ");
  EXPECT_PRED2(contains, ask("GET " + std::string(8200, 'a')), " 431 ");
}

TEST_F(Metrics, AreServedWhileOtherClientsAreSlow) {
  std::vector<FileDescriptor> slow;
  for (int i = 0; i < 8; ++i) {
    slow.push_back(connect());
    ASSERT_TRUE(send(slow.back(), "GET /metr"));
  }
  EXPECT_PRED2(contains, get("/metrics", host("localhost")), " 200 OK");
  // It did not have to close them first.
  for (const FileDescriptor& socket : slow) {
    pollfd ready{socket.get(), POLLIN, 0};
    EXPECT_EQ(::poll(&ready, 1, 0), 0);
  }
}

TEST_F(Metrics, AreNotWaitedForByAClientForEver) {
  const FileDescriptor socket = connect();
  const auto deadline = Clock::now() + kDeadline;
  bool is_closed = false;
  // A byte now and then is not progress.
  while (!is_closed && Clock::now() < deadline) {
    send(socket, "G");
    pollfd ready{socket.get(), POLLIN, 0};
    is_closed = ::poll(&ready, 1, 100) == 1;
  }
  EXPECT_TRUE(is_closed);
}

}  // namespace
}  // namespace lockstep::metrics_test
