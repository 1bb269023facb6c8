#include "lockstep/simulate/network.h"

#include <gtest/gtest.h>

#include "lockstep/base/error.h"

namespace lockstep::simulate {
namespace {

constexpr double kMiB = 1 << 20;

// The table of values for n ranks in docs/collectives.md.
TEST(AllReduceCosts, AreThoseOfThePageForSharedMemory) {
  EXPECT_EQ(shm_cost(2, kMiB).waits, 3);
  EXPECT_EQ(shm_cost(8, kMiB).waits, 2);
  EXPECT_EQ(shm_cost(64, kMiB).waits, 3 * 2);  // three in sequence
  EXPECT_EQ(shm_cost(128, kMiB).waits, 3 * 2);
  EXPECT_DOUBLE_EQ(shm_cost(2, kMiB).bytes / kMiB, 2);
  EXPECT_DOUBLE_EQ(shm_cost(8, kMiB).bytes / kMiB, 2.75);
  EXPECT_NEAR(shm_cost(64, kMiB).bytes / kMiB, 2.97, 0.005);
  EXPECT_NEAR(shm_cost(128, kMiB).bytes / kMiB, 2.98, 0.005);
}

TEST(AllReduceCosts, CountTheWordsThatARankReadsInASync) {
  EXPECT_EQ(shm_cost(2, 8).messages, 1);
  EXPECT_EQ(shm_cost(8, 8).messages, 7);
  EXPECT_EQ(shm_cost(64, 8).messages, 18);
  EXPECT_EQ(shm_cost(128, 8).messages, 22);
}

TEST(AllReduceCosts, ChangeWhereTheFormOfTheCollectiveDoes) {
  EXPECT_EQ(shm_cost(8, 8192).bytes, 8 * 8192);  // one-shot
  EXPECT_EQ(shm_cost(8, 8193).waits, 2);         // by pieces
  EXPECT_EQ(tcp_cost(5, 16384).waits, 1);
  EXPECT_EQ(tcp_cost(5, 16384).bytes, 4 * 16384);
  EXPECT_EQ(tcp_cost(5, 16385).waits, 2);
  EXPECT_DOUBLE_EQ(tcp_cost(5, 1e6).bytes, 1.6e6);
  EXPECT_EQ(ring_cost(5, 1e6).waits, 8);
  EXPECT_DOUBLE_EQ(ring_cost(5, 1e6).bytes, 1.6e6);
}

TEST(AllReduceTime, IsTheSlowerOfTheHostAndItsLink) {
  Network network{.ranks_per_host = 4,
                  .host = {.latency_s = 0, .bytes_per_s = 1e12},
                  .between = {.latency_s = 1e-3, .bytes_per_s = 1e9}};
  // 8 ranks on 2 hosts: each of 4 ranks sends 2 * 7/8 of 8 MB, 4/7 of which
  // leaves the host.
  EXPECT_NEAR(all_reduce_s(network, 8, 8e6), 2e-3 + 4 * 14e6 * 4 / 7 / 1e9,
              1e-9);
  network.host.bytes_per_s = 1e6;
  EXPECT_NEAR(all_reduce_s(network, 8, 8e6), 2e-3 + 14, 1e-9);
  EXPECT_EQ(all_reduce_s(network, 1, 8e6), 0);
}

TEST(AllReduceTime, GrowsWithTurnsOnTheCores) {
  Network network{.algorithm = Algorithm::kTcp,
                  .ranks_per_host = 8,
                  .cores_per_host = 2,
                  .host = {.latency_s = 0, .bytes_per_s = 1e9}};
  EXPECT_DOUBLE_EQ(all_reduce_s(network, 2, 1e6), 1e-3);
  EXPECT_DOUBLE_EQ(all_reduce_s(network, 3, 1e6), 2 * 4e-3 / 3);
  EXPECT_DOUBLE_EQ(all_reduce_s(network, 8, 1e6), 4 * 1.75e-3);
  network.message_s = 1e-6;
  EXPECT_DOUBLE_EQ(all_reduce_s(network, 8, 1e6), 4 * (1.75e-3 + 14e-6));
}

TEST(AllReduceTime, IsLongerBeyondTheCaches) {
  Network network{.algorithm = Algorithm::kTcp,
                  .ranks_per_host = 4,
                  .cores_per_host = 2,
                  .cache_bytes = 1e6,
                  .memory_bytes_per_s = 0.5e9,
                  .host = {.latency_s = 0, .bytes_per_s = 1e9}};
  EXPECT_DOUBLE_EQ(all_reduce_s(network, 2, 1e6), 1e-3);
  EXPECT_DOUBLE_EQ(all_reduce_s(network, 2, 2e6), 1e-3 + 2e-3);
  // Two ranks share a core and its caches.
  EXPECT_DOUBLE_EQ(all_reduce_s(network, 4, 1e6), 2 * 1.5 * (0.5e-3 + 1e-3));
  network.memory_bytes_per_s = 0;
  EXPECT_THROW((void)all_reduce_s(network, 2, 2e6), InvalidArgument);
}

TEST(AllReduceTime, CountsWhatLeavesASwitch) {
  Network network{.ranks_per_host = 1,
                  .between = {.latency_s = 0, .bytes_per_s = 1e9},
                  .hosts_per_switch = 2,
                  .oversubscription = 4};
  // Each of 4 ranks sends 1.5 MB. 2/3 of that goes to the other switch.
  EXPECT_NEAR(all_reduce_s(network, 4, 1e6), 1e6 * 4 / 1e9, 1e-12);
  EXPECT_NEAR(all_reduce_s(network, 2, 1e6), 1e6 / 1e9, 1e-12);
  network.algorithm = Algorithm::kRing;  // one of two hosts sends over it
  EXPECT_NEAR(all_reduce_s(network, 4, 1e6), 1.5e6 / 0.5e9, 1e-12);
}

TEST(AllReduceTime, FollowsTheMeasuredBusBandwidth) {
  const Network network{.algorithm = Algorithm::kRing,
                        .ranks_per_host = 8,
                        .bus_by_hosts = {{1, 400e9}, {4, 100e9}}};
  EXPECT_DOUBLE_EQ(all_reduce_s(network, 8, 1e9), 1.75e9 / 400e9);
  EXPECT_NEAR(all_reduce_s(network, 16, 1e9), 1.875e9 / 200e9, 1e-9);
  EXPECT_THROW((void)all_reduce_s(network, 40, 1e9), InvalidArgument);
}

TEST(AllReduceTime, RefusesALinkWithoutBandwidth) {
  EXPECT_THROW((void)all_reduce_s({.ranks_per_host = 2}, 2, 1e6),
               InvalidArgument);
  EXPECT_THROW((void)all_reduce_s({.ranks_per_host = 1}, 2, 1e6),
               InvalidArgument);
}

}  // namespace
}  // namespace lockstep::simulate
