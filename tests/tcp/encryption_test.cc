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
        run_mesh(ranks, sum_on, Mesh::Hosts::kOne, Data::kEncrypted);
    for (const auto& error : errors) EXPECT_EQ(error, "");
  }
}

}  // namespace
}  // namespace lockstep::tcp::encryption_test
