#include "lockstep/tcp/collectives.h"

#include <array>

#include <gtest/gtest.h>

#include "tests/shm/numbers.h"
#include "tests/tcp/ranks.h"

namespace lockstep::tcp::collectives_test {
namespace {

using shm::bytes_of;
using shm::chained;
using shm::Numbers;
using shm::numbers_of;
using shm::reduced;
using transport::Operation;

constexpr std::chrono::milliseconds kTimeout{60'000};

void start(Mesh& mesh, Operation operation, int root = -1) {
  mesh.begin({.operation = operation, .root = root}, kTimeout);
}

// Elements of 4 bytes: 0, 1, an odd number, about a cache line, the limit of
// one step, one segment, several segments, and more segments than can be in
// transit.
constexpr std::array<size_t, 11> kCounts{
    0, 1, 15, 17, 1000, 16'384, 16'385, 70'000, 131'072, 300'001, 1'500'000};

class Collectives : public testing::TestWithParam<int> {
 protected:
  static void on_all(const MeshTask& task) {
    // The two cases differ in how much data is in transit.
    for (const auto hosts : {Mesh::Hosts::kOne, Mesh::Hosts::kSeveral}) {
      for (const auto& message : run_mesh(GetParam(), task, hosts)) {
        EXPECT_EQ(message, "");
      }
    }
  }
};

TEST_P(Collectives, AllReduceCombinesInTheOrderOfTheRanks) {
  on_all([](Mesh& mesh) {
    const transport::Reduction reduction = chained();
    uint32_t salt = 0;
    for (const size_t count : kCounts) {
      Numbers data = numbers_of(mesh.rank(), count, ++salt);
      start(mesh, Operation::kAllReduce);
      all_reduce(mesh, bytes_of(data), reduction);
      EXPECT_EQ(data, reduced(mesh.ranks(), count, salt)) << count;
    }
  });
}

TEST_P(Collectives, ReduceLeavesOtherRanksAlone) {
  on_all([](Mesh& mesh) {
    const transport::Reduction reduction = chained();
    uint32_t salt = 0;
    for (const size_t count : kCounts) {
      const int root = static_cast<int>(salt) % mesh.ranks();
      const Numbers before = numbers_of(mesh.rank(), count, ++salt);
      Numbers data = before;
      start(mesh, Operation::kReduce, root);
      reduce(mesh, bytes_of(data), root, reduction);
      EXPECT_EQ(data, mesh.rank() == root ? reduced(mesh.ranks(), count, salt)
                                          : before)
          << count;
    }
  });
}

TEST_P(Collectives, BroadcastGivesRootsDataToAll) {
  on_all([](Mesh& mesh) {
    uint32_t salt = 0;
    for (const size_t count : kCounts) {
      const int root = static_cast<int>(salt) % mesh.ranks();
      Numbers data = numbers_of(mesh.rank(), count, ++salt);
      start(mesh, Operation::kBroadcast, root);
      broadcast(mesh, bytes_of(data), root);
      EXPECT_EQ(data, numbers_of(root, count, salt)) << count;
    }
  });
}

TEST_P(Collectives, ScatterUndoesGather) {
  on_all([](Mesh& mesh) {
    uint32_t salt = 0;
    for (const size_t count : kCounts) {
      const int root = static_cast<int>(salt) % mesh.ranks();
      const Numbers input = numbers_of(mesh.rank(), count, ++salt);
      std::vector<Numbers> all;
      std::vector<std::span<std::byte>> outputs;
      std::vector<std::span<const std::byte>> inputs;
      if (mesh.rank() == root) {
        all.assign(static_cast<size_t>(mesh.ranks()), Numbers(count));
        for (auto& each : all) {
          outputs.push_back(bytes_of(each));
          inputs.push_back(bytes_of(std::as_const(each)));
        }
      }
      start(mesh, Operation::kGather, root);
      gather(mesh, bytes_of(input), outputs, root);
      for (size_t rank = 0; rank < all.size(); ++rank) {
        EXPECT_EQ(all[rank], numbers_of(static_cast<int>(rank), count, salt));
      }
      Numbers output(count);
      start(mesh, Operation::kScatter, root);
      scatter(mesh, bytes_of(output), inputs, root);
      EXPECT_EQ(output, input) << count;
    }
  });
}

TEST_P(Collectives, ReduceScatterAndAllGatherMakeAnAllReduce) {
  on_all([](Mesh& mesh) {
    const transport::Reduction reduction = chained();
    uint32_t salt = 0;
    for (const size_t count : kCounts) {
      // The part of rank p for rank r is what a rank p + r * ranks would
      // contribute.
      std::vector<Numbers> parts, sums;
      std::vector<std::span<const std::byte>> inputs;
      std::vector<std::span<std::byte>> outputs;
      ++salt;
      for (int r = 0; r < mesh.ranks(); ++r) {
        parts.push_back(numbers_of(mesh.rank(), count,
                                   salt + 100 * static_cast<uint32_t>(r)));
        sums.emplace_back(count);
      }
      for (auto& part : parts) inputs.push_back(bytes_of(std::as_const(part)));
      for (auto& sum : sums) outputs.push_back(bytes_of(sum));
      Numbers output(count);
      start(mesh, Operation::kReduceScatter);
      reduce_scatter(mesh, bytes_of(output), inputs, reduction);
      start(mesh, Operation::kAllGather);
      all_gather(mesh, bytes_of(std::as_const(output)), outputs);
      for (int r = 0; r < mesh.ranks(); ++r) {
        EXPECT_EQ(
            sums[static_cast<size_t>(r)],
            reduced(mesh.ranks(), count, salt + 100 * static_cast<uint32_t>(r)))
            << count;
      }
    }
  });
}

TEST_P(Collectives, AllToAllMovesSizesThatDifferByPair) {
  on_all([](Mesh& mesh) {
    const auto count_of = [&](int from, int to) {
      return static_cast<size_t>(from * 50'000 + to * 3);
    };
    std::vector<Numbers> sent, received;
    for (int peer = 0; peer < mesh.ranks(); ++peer) {
      sent.push_back(numbers_of(mesh.rank(), count_of(mesh.rank(), peer),
                                static_cast<uint32_t>(peer)));
      received.emplace_back(count_of(peer, mesh.rank()));
    }
    std::vector<std::span<const std::byte>> inputs;
    std::vector<std::span<std::byte>> outputs;
    for (auto& each : sent) inputs.push_back(bytes_of(std::as_const(each)));
    for (auto& each : received) outputs.push_back(bytes_of(each));
    start(mesh, Operation::kAllToAll);
    all_to_all(mesh, outputs, inputs);
    for (int peer = 0; peer < mesh.ranks(); ++peer) {
      EXPECT_EQ(received[static_cast<size_t>(peer)],
                numbers_of(peer, count_of(peer, mesh.rank()),
                           static_cast<uint32_t>(mesh.rank())));
    }
  });
}

INSTANTIATE_TEST_SUITE_P(Few, Collectives, testing::Values(2, 3));
// Tier of Many/Collectives: full. More ranks than cores take long.
INSTANTIATE_TEST_SUITE_P(Many, Collectives, testing::Values(4, 5, 8));

}  // namespace
}  // namespace lockstep::tcp::collectives_test
