#include "lockstep/shm/collectives.h"

#include <cstring>
#include <random>
#include <tuple>

#include <gtest/gtest.h>

#include "tests/shm/numbers.h"
#include "tests/shm/ranks.h"

namespace lockstep::shm {

using transport::Operation;
using transport::Reduction;
namespace {

void start(Group& group, Operation operation, size_t elements, int root = -1) {
  group.begin({.operation = operation,
               .root = root,
               .type = transport::short_text("uint32"),
               .elements = elements},
              group.timeout());
}

// Elements of 4 bytes: 0, 1, an odd number, about a cache line, the one-shot
// limit of 8, 4 and 2 ranks, a segment of 2 ranks, a slot, several slots.
constexpr std::array<size_t, 16> kCounts{
    0,    1,      15,     17,    1000,  2048,    2049, 4096,
    8192, 16'384, 16'385, 65536, 65552, 200'001, 8193, 300'000};

class Collectives : public testing::TestWithParam<std::tuple<Kind, int>> {
 protected:
  void on_all(const RankTask& task) {
    const auto [kind, ranks] = GetParam();
    for (const auto& message : run_ranks(kind, ranks, task)) {
      EXPECT_EQ(message, "");
    }
  }
};

TEST_P(Collectives, AllReduceCombinesInTheOrderOfTheRanks) {
  on_all([](Group& group) {
    for (const size_t count : kCounts) {
      Numbers data = numbers_of(group.rank(), count);
      start(group, Operation::kAllReduce, count);
      all_reduce(group, bytes_of(data), chained());
      require(data == reduced(group.ranks(), count), std::to_string(count));
    }
  });
}

TEST_P(Collectives, ReduceGivesTheResultToTheRootAlone) {
  on_all([](Group& group) {
    for (const size_t count : kCounts) {
      for (int root = 0; root < group.ranks(); ++root) {
        Numbers data = numbers_of(group.rank(), count);
        start(group, Operation::kReduce, count, root);
        reduce(group, bytes_of(data), root, chained());
        require(
            data == (group.rank() == root ? reduced(group.ranks(), count)
                                          : numbers_of(group.rank(), count)),
            std::to_string(count));
      }
    }
  });
}

TEST_P(Collectives, BroadcastGivesAllTheRootsData) {
  on_all([](Group& group) {
    for (const size_t count : kCounts) {
      for (int root = 0; root < group.ranks(); ++root) {
        Numbers data = numbers_of(group.rank(), count);
        start(group, Operation::kBroadcast, count, root);
        broadcast(group, bytes_of(data), root);
        require(data == numbers_of(root, count), std::to_string(count));
      }
    }
  });
}

TEST_P(Collectives, AllGatherGivesEachRanksDataToAll) {
  on_all([](Group& group) {
    for (const size_t count : kCounts) {
      const Numbers input = numbers_of(group.rank(), count);
      std::vector<Numbers> outputs(static_cast<size_t>(group.ranks()),
                                   Numbers(count));
      std::vector<std::span<std::byte>> spans;
      for (auto& output : outputs) spans.push_back(bytes_of(output));
      start(group, Operation::kAllGather, count);
      all_gather(group, bytes_of(input), spans);
      for (int rank = 0; rank < group.ranks(); ++rank) {
        require(outputs[static_cast<size_t>(rank)] == numbers_of(rank, count),
                std::to_string(count));
      }
    }
  });
}

TEST_P(Collectives, ScatterGivesEachRankItsPart) {
  on_all([](Group& group) {
    for (const size_t count : kCounts) {
      const int root = group.ranks() - 1;
      std::vector<Numbers> inputs;
      std::vector<std::span<const std::byte>> spans;
      if (group.rank() == root) {
        for (int rank = 0; rank < group.ranks(); ++rank) {
          inputs.push_back(numbers_of(rank, count, 5));
        }
        for (const auto& input : inputs) spans.push_back(bytes_of(input));
      }
      Numbers output(count);
      start(group, Operation::kScatter, count, root);
      scatter(group, bytes_of(output), spans, root);
      require(output == numbers_of(group.rank(), count, 5),
              std::to_string(count));
    }
  });
}

TEST_P(Collectives, ReduceScatterCombinesEachRanksPart) {
  on_all([](Group& group) {
    for (const size_t count : kCounts) {
      std::vector<Numbers> inputs;
      std::vector<std::span<const std::byte>> spans;
      for (int part = 0; part < group.ranks(); ++part) {
        inputs.push_back(
            numbers_of(group.rank(), count, static_cast<uint32_t>(part)));
      }
      for (const auto& input : inputs) spans.push_back(bytes_of(input));
      Numbers output(count);
      start(group, Operation::kReduceScatter, count);
      reduce_scatter(group, bytes_of(output), spans, chained());
      require(output == reduced(group.ranks(), count,
                                static_cast<uint32_t>(group.rank())),
              std::to_string(count));
    }
  });
}

TEST_P(Collectives, AllToAllCarriesEachPairsOwnSize) {
  on_all([](Group& group) {
    const auto size_of = [](int from, int to, size_t count) {
      return (static_cast<size_t>(from + 2 * to) % 4) * count / 2;
    };
    for (const size_t count : kCounts) {
      std::vector<Numbers> inputs, outputs;
      std::vector<std::span<const std::byte>> in;
      std::vector<std::span<std::byte>> out;
      for (int other = 0; other < group.ranks(); ++other) {
        inputs.push_back(numbers_of(group.rank(),
                                    size_of(group.rank(), other, count),
                                    static_cast<uint32_t>(other)));
        outputs.emplace_back(size_of(other, group.rank(), count));
      }
      for (const auto& input : inputs) in.push_back(bytes_of(input));
      for (auto& output : outputs) out.push_back(bytes_of(output));
      start(group, Operation::kAllToAll, 0);
      all_to_all(group, out, in);
      for (int other = 0; other < group.ranks(); ++other) {
        require(outputs[static_cast<size_t>(other)] ==
                    numbers_of(other, size_of(other, group.rank(), count),
                               static_cast<uint32_t>(group.rank())),
                std::to_string(count));
      }
    }
  });
}

TEST_P(Collectives, AllReduceSharedWorksOnEachOthersMemory) {
  const auto [kind, ranks] = GetParam();
  for (const size_t count : kCounts) {
    std::vector<std::shared_ptr<const Segment>> memory;
    std::vector<SegmentAddress> addresses;
    for (int rank = 0; rank < ranks; ++rank) {
      memory.push_back(Segment::create(count * sizeof(uint32_t)));
      addresses.push_back(memory.back()->address());
    }
    const auto messages = run_ranks(kind, ranks, [&](Group& group) {
      std::vector<std::shared_ptr<const Segment>> mapped;
      std::vector<std::span<std::byte>> spans;
      for (const auto& address : addresses) {
        mapped.push_back(Segment::open(address));
        spans.push_back(mapped.back()->bytes().first(count * sizeof(uint32_t)));
      }
      const std::span<std::byte> own = spans[static_cast<size_t>(group.rank())];
      for (uint32_t salt = 0; salt < 3; ++salt) {
        const Numbers mine = numbers_of(group.rank(), count, salt);
        if (count > 0) std::memcpy(own.data(), mine.data(), own.size());
        start(group, Operation::kAllReduce, count);
        group.sync();
        all_reduce_shared(group, spans, chained());
        const Numbers expected = reduced(group.ranks(), count, salt);
        require(count == 0 ||
                    std::memcmp(own.data(), expected.data(), own.size()) == 0,
                std::to_string(count));
      }
    });
    for (const auto& message : messages) EXPECT_EQ(message, "");
  }
}

// Ranks are alternately fast and slow, so a slot that is overwritten too early
// is noticed.
TEST_P(Collectives, ManyInARowDoNotDisturbEachOther) {
  on_all([](Group& group) {
    std::mt19937 shared_choice(7);
    std::mt19937 own_pace(static_cast<uint32_t>(group.rank()));
    const int rounds = group.ranks() > 4 ? 100 : 400;
    for (int round = 0; round < rounds; ++round) {
      const auto salt = static_cast<uint32_t>(round);
      const size_t count = shared_choice() % 20'000;
      const auto kind = shared_choice() % 4;
      if (own_pace() % 3 == 0) std::this_thread::yield();
      if (kind == 0) {
        start(group, Operation::kBarrier, 0);
        barrier(group);
        continue;
      }
      if (kind == 1) {
        const int root = static_cast<int>(salt) % group.ranks();
        Numbers data = numbers_of(group.rank(), count, salt);
        start(group, Operation::kBroadcast, count, root);
        broadcast(group, bytes_of(data), root);
        require(data == numbers_of(root, count, salt), "broadcast");
        continue;
      }
      Numbers data = numbers_of(group.rank(), count, salt);
      start(group, Operation::kAllReduce, count);
      all_reduce(group, bytes_of(data), chained());
      require(data == reduced(group.ranks(), count, salt), "all_reduce");
    }
  });
}

// With this many ranks, sync() has teams: a full one, and one with a single
// rank.
TEST(ManyRanks, DoAllCollectivesInTeams) {
  constexpr int kRanks = 2 * kFlatSyncRanks + 1;
  const auto messages = run_ranks(Kind::kThreads, kRanks, [](Group& group) {
    for (uint32_t salt = 0; salt < 3; ++salt) {
      for (const size_t count : {1, 129, 7000, 100'000}) {
        Numbers data = numbers_of(group.rank(), count, salt);
        start(group, Operation::kAllReduce, count);
        all_reduce(group, bytes_of(data), chained());
        require(data == reduced(group.ranks(), count, salt), "all_reduce");
        const int root = static_cast<int>(salt) * kFlatSyncRanks;
        data = numbers_of(group.rank(), count, salt);
        start(group, Operation::kBroadcast, count, root);
        broadcast(group, bytes_of(data), root);
        require(data == numbers_of(root, count, salt), "broadcast");
      }
      start(group, Operation::kBarrier, 0);
      barrier(group);
    }
  });
  for (const auto& message : messages) EXPECT_EQ(message, "");
}

template <class Ranks>
auto all_kinds(Ranks ranks) {
  return testing::Combine(testing::Values(Kind::kThreads, Kind::kProcesses),
                          ranks);
}
INSTANTIATE_TEST_SUITE_P(Few, Collectives, all_kinds(testing::Values(1, 2, 3)),
                         InstanceName());
// Tier of Many/Collectives: full. More ranks than cores take long.
INSTANTIATE_TEST_SUITE_P(Many, Collectives, all_kinds(testing::Values(4, 5, 8)),
                         InstanceName());

}  // namespace
}  // namespace lockstep::shm
