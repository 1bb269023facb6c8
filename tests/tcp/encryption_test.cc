// Ranks whose connections stay encrypted.
#include <gtest/gtest.h>

#include "lockstep/tcp/collectives.h"
#include "tests/shm/numbers.h"
#include "tests/tcp/ranks.h"

namespace lockstep::tcp::encryption_test {
namespace {

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

TEST(Encryption, RanksSumOverEncryptedConnections) {
  for (const int ranks : {2, 3}) {
    const auto errors =
        run_mesh(ranks, sum_on, Mesh::Hosts::kOne, Listener::Data::kEncrypted);
    for (const auto& error : errors) EXPECT_EQ(error, "");
  }
}

TEST(Encryption, RanksExchangeMessagesOverEncryptedConnections) {
  const auto errors =
      run_listening_p2p(3, Listener::Data::kEncrypted, [](P2pRank& self) {
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

TEST(Encryption, AMessageThatTimesOutLeavesTheConnectionUsable) {
  const auto errors =
      run_listening_p2p(2, Listener::Data::kEncrypted, [](P2pRank& self) {
        const Message large = noise(16 << 20, 1), small = noise(8, 2);
        Message got(large.size()), got_small(8);
        for (int round = 0; round < 5; ++round) {
          self.timeout = std::chrono::milliseconds(2 + 5 * round);
          auto attempt = self.rank() == 0 ? self.send(1, 1, large)
                                          : self.receive(0, 1, got);
          attempt.error();
          self.timeout = std::chrono::seconds(60);
          auto sent = self.send(1 - self.rank(), 2, small);
          self.receive(1 - self.rank(), 2, got_small).get();
          require(got_small == small, "another message");
        }
      });
  for (const auto& error : errors) EXPECT_EQ(error, "");
}

}  // namespace
}  // namespace lockstep::tcp::encryption_test
