#include "lockstep/tcp/collectives.h"

#include <array>
#include <cstring>
#include <numeric>

#include <gtest/gtest.h>

#include "tests/tcp/mesh_ranks.h"

namespace lockstep::tcp::collectives_test {
namespace {

using Numbers = std::vector<uint32_t>;
using shm::Operation;

constexpr std::chrono::milliseconds kTimeout{60'000};

std::span<std::byte> bytes_of(Numbers& numbers) {
  return std::as_writable_bytes(std::span(numbers));
}
std::span<const std::byte> bytes_of(const Numbers& numbers) {
  return std::as_bytes(std::span(numbers));
}

/// A hash: neither commutative nor associative, so that its order shows.
Reduction chained() {
  return {.element_bytes = sizeof(uint32_t),
          .combine = [](std::span<const std::byte* const> inputs,
                        std::byte* output, size_t elements) {
            for (size_t i = 0; i < elements; ++i) {
              uint32_t sum = 0;
              for (const std::byte* input : inputs) {
                uint32_t value = 0;
                std::memcpy(&value, input + i * sizeof(value), sizeof(value));
                sum = sum * 31 + value;
              }
              std::memcpy(output + i * sizeof(sum), &sum, sizeof(sum));
            }
          }};
}

/// What `rank` brings: `salt` tells one collective from the next.
Numbers numbers_of(int rank, size_t count, uint32_t salt) {
  Numbers numbers(count);
  std::iota(numbers.begin(), numbers.end(),
            static_cast<uint32_t>(rank) * 1'000'003 + salt * 77);
  return numbers;
}

Numbers reduced(int ranks, size_t count, uint32_t salt) {
  Numbers result(count, 0);
  for (int rank = 0; rank < ranks; ++rank) {
    const Numbers of_rank = numbers_of(rank, count, salt);
    for (size_t i = 0; i < count; ++i) result[i] = result[i] * 31 + of_rank[i];
  }
  return result;
}

void start(Mesh& mesh, Operation operation, int root = -1) {
  mesh.begin({.operation = operation, .root = root}, kTimeout);
}

// Elements of 4 bytes: 0, 1, odd, about a cache line, the limit of one step,
// one segment, several, and more than the places for segments on their way.
constexpr std::array<size_t, 11> kCounts{
    0, 1, 15, 17, 1000, 16'384, 16'385, 70'000, 131'072, 300'001, 1'500'000};

class Collectives : public testing::TestWithParam<int> {
 protected:
  static void on_all(const MeshTask& task) {
    for (const auto& message : run_mesh(GetParam(), task)) {
      EXPECT_EQ(message, "");
    }
  }
};

TEST_P(Collectives, AllReduceCombinesInTheOrderOfTheRanks) {
  on_all([](Mesh& mesh) {
    const Reduction reduction = chained();
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
    const Reduction reduction = chained();
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
    const Reduction reduction = chained();
    uint32_t salt = 0;
    for (const size_t count : kCounts) {
      // Rank p's part for rank r is what a rank p + r * ranks would bring.
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

INSTANTIATE_TEST_SUITE_P(Tcp, Collectives, testing::Values(2, 3, 4, 5, 8));

}  // namespace
}  // namespace lockstep::tcp::collectives_test
