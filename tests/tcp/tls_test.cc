#include "lockstep/tcp/tls.h"

#include <cstdlib>

#include <fmt/format.h>
#include <gtest/gtest.h>

#include "lockstep/base/error.h"
#include "lockstep/tcp/collectives.h"
#include "tests/base/expect_problem.h"
#include "tests/base/temporary_folder.h"
#include "tests/shm/numbers.h"
#include "tests/tcp/ranks.h"

namespace lockstep::tcp::tls_test {
namespace {

constexpr const char* kTransport = "GLOO_DEVICE_TRANSPORT";
constexpr const char* kKey = "GLOO_DEVICE_TRANSPORT_TCP_TLS_PKEY";
constexpr const char* kCertificate = "GLOO_DEVICE_TRANSPORT_TCP_TLS_CERT";
constexpr const char* kAuthority = "GLOO_DEVICE_TRANSPORT_TCP_TLS_CA_FILE";

/// Two authorities, and a certificate signed by the first, all made by openssl.
class TlsTest : public testing::Test {
 protected:
  void SetUp() override {
    for (const char* authority : {"ca", "other"}) {
      run(
          fmt::format("openssl req -x509 -newkey ec -pkeyopt "
                      "ec_paramgen_curve:P-256 -nodes -days 1 -subj /CN={0} "
                      "-keyout {0}.key -out {0}.pem",
                      authority));
    }
    run("openssl req -newkey ec -pkeyopt ec_paramgen_curve:P-256 -nodes "
        "-subj /CN=job -keyout job.key -out job.csr");
    run("openssl x509 -req -in job.csr -CA ca.pem -CAkey ca.key "
        "-CAcreateserial -days 1 -out job.pem");
    ::setenv(kTransport, "TCP_TLS", 1);
    set(kKey, "job.key");
    set(kCertificate, "job.pem");
    set(kAuthority, "ca.pem");
  }
  void TearDown() override {
    for (const char* name : {kTransport, kKey, kCertificate, kAuthority}) {
      ::unsetenv(name);
    }
  }
  void set(const char* variable, const std::string& file) {
    ::setenv(variable, folder_.path(file).c_str(), 1);
  }
  void run(const std::string& command) {
    const std::string line =
        fmt::format("cd {} && {} > log 2>&1", folder_.path(), command);
    ASSERT_EQ(std::system(line.c_str()), 0) << command;
  }

  TemporaryFolder folder_;
};

/// Runs an all-reduce of a few segments and a barrier, with an ordered sum.
void sum_on(Mesh& mesh) {
  shm::Numbers data = shm::numbers_of(mesh.rank(), 300'000);
  mesh.begin({.operation = transport::Operation::kAllReduce},
             std::chrono::seconds(60));
  all_reduce(mesh, shm::bytes_of(data), shm::chained());
  EXPECT_EQ(data, shm::reduced(mesh.ranks(), data.size()));
  mesh.begin({.operation = transport::Operation::kBarrier},
             std::chrono::seconds(60));
  barrier(mesh);
}

TEST_F(TlsTest, RanksSumOverEncryptedConnections) {
  for (const int ranks : {2, 3}) {
    for (const auto& error : run_mesh(ranks, sum_on)) EXPECT_EQ(error, "");
  }
}

TEST_F(TlsTest, RanksExchangeMessagesOverEncryptedConnections) {
  const auto errors = run_listening_p2p(3, [](P2pRank& self) {
    const int next = self.next(), previous = self.previous();
    for (const size_t bytes : {0, 8, 4096, 100'000, 5'000'000}) {
      const Message mine = noise(bytes, 7);
      std::vector<Message> got(10, Message(bytes));
      std::vector<Awaited> all;
      for (int tag = 0; tag < 10; ++tag) {
        all.push_back(self.send(next, tag, mine));
      }
      for (int tag = 9; tag >= 0; --tag) {
        all.push_back(
            self.receive(previous, tag, got[static_cast<size_t>(tag)]));
      }
      for (auto& each : all) each.get();
      for (const auto& each : got) require(each == mine, "another message");
    }
  });
  for (const auto& error : errors) EXPECT_EQ(error, "");
}

TEST_F(TlsTest, AMessageThatTimesOutLeavesTheConnectionUsable) {
  const auto errors = run_listening_p2p(2, [](P2pRank& self) {
    const Message large = noise(16 << 20, 1), small = noise(8, 2);
    Message got(large.size()), got_small(8);
    for (int round = 0; round < 5; ++round) {
      self.timeout = std::chrono::milliseconds(2 + 5 * round);
      auto attempt =
          self.rank() == 0 ? self.send(1, 1, large) : self.receive(0, 1, got);
      attempt.error();
      self.timeout = std::chrono::seconds(60);
      auto sent = self.send(1 - self.rank(), 2, small);
      self.receive(1 - self.rank(), 2, got_small).get();
      require(got_small == small, "another message");
    }
  });
  for (const auto& error : errors) EXPECT_EQ(error, "");
}

TEST_F(TlsTest, ACertificateOfAnotherAuthorityIsRefused) {
  set(kAuthority, "other.pem");
  for (const auto& error : run_mesh(2, sum_on)) {
    EXPECT_NE(error.find("[ranks-not-connected]"), std::string::npos) << error;
  }
}

TEST_F(TlsTest, AMissingVariableAndAWrongFileAreNamed) {
  set(kKey, "ca.key");
  expect_problem(error_of<InvalidArgument>(&Tls::from_environment),
                 ErrorCode::kBadVariable, {kKey});
  ::unsetenv(kCertificate);
  expect_problem(error_of<InvalidArgument>(&Tls::from_environment),
                 ErrorCode::kBadVariable, {kCertificate});
}

TEST(Tls, IsOffUnlessTheEnvironmentAsksForIt) {
  EXPECT_EQ(Tls::from_environment(), nullptr);
}

}  // namespace
}  // namespace lockstep::tcp::tls_test
