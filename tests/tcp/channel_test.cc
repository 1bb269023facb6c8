// Channels between threads and processes, over Unix sockets, tcp and TLS.
// Tier: full. Eight ranks send each other large messages.
#include "lockstep/tcp/channel.h"

#include <algorithm>
#include <array>
#include <atomic>
#include <functional>
#include <future>
#include <random>
#include <thread>

#include <gtest/gtest.h>

#include "tests/tcp/messages.h"

namespace lockstep::tcp::channel_test {
namespace {

// The size that a channel sends at once, and a number of messages that takes a
// while.
constexpr size_t kHeadBytes = 4096;
constexpr int kMany = 48;
// Empty, small up to the limit, and larger.
constexpr std::array<size_t, 8> kSizes{
    0, 1, 64, kHeadBytes - 16, kHeadBytes, kHeadBytes + 1, 65'536, 1'048'579};

using Futures = std::vector<Awaited>;

void wait_for(Futures& futures) {
  for (auto& future : futures) future.get();
  futures.clear();
}

class Channels : public ChannelTest {};

TEST_P(Channels, PassOnAlongARing) {
  on_all([](ChannelRank& self) {
    const int next = self.next(), previous = self.previous();
    for (const size_t bytes : kSizes) {
      const auto seed = static_cast<uint32_t>(bytes * 10);
      const Bytes mine = noise(bytes, seed + static_cast<uint32_t>(next));
      Bytes got(bytes);
      auto sent = self.send(next, 0, mine);
      require(self.receive(previous, 0, got).get() == previous, "source");
      sent.get();
      require(got == noise(bytes, seed + static_cast<uint32_t>(self.rank())),
              std::to_string(bytes));
    }
  });
}

// All ranks know the plan: for every pair, messages with random sizes and tags,
// which are received in a different order where the tags allow it.
TEST_P(Channels, CarryRandomSizesAndTagsBetweenAllPairs) {
  on_all([](ChannelRank& self) {
    const int count = self.ranks() > 4 ? 10 : 30;
    struct Planned {
      int tag;
      size_t bytes;
      uint32_t seed;
    };
    const auto plan = [&](int from, int to) {
      std::mt19937 random(static_cast<uint32_t>(from * 100 + to));
      std::vector<Planned> result;
      for (int i = 0; i < count; ++i) {
        const size_t most = random() % 4 == 0 ? 1'048'576 : 9000;
        result.push_back({.tag = static_cast<int>(random() % 4),
                          .bytes = random() % (most + 1),
                          .seed = static_cast<uint32_t>(random())});
      }
      return result;
    };
    Futures futures;
    std::vector<Bytes> out;
    std::vector<std::pair<Bytes, Bytes>> got_and_expected;
    const auto pairs = static_cast<size_t>(count * self.ranks());
    out.reserve(pairs);
    got_and_expected.reserve(pairs);
    for (int other = 0; other < self.ranks(); ++other) {
      if (other == self.rank()) continue;
      for (const Planned& p : plan(self.rank(), other)) {
        out.push_back(noise(p.bytes, p.seed));
        futures.push_back(self.send(other, p.tag, out.back()));
      }
      auto wanted = plan(other, self.rank());
      std::stable_sort(
          wanted.begin(), wanted.end(),
          [](const Planned& a, const Planned& b) { return a.tag > b.tag; });
      for (const Planned& p : wanted) {
        got_and_expected.emplace_back(Bytes(p.bytes), noise(p.bytes, p.seed));
        futures.push_back(
            self.receive(other, p.tag, got_and_expected.back().first));
      }
    }
    wait_for(futures);
    for (const auto& [got, expected] : got_and_expected) {
      require(got == expected, "another message");
    }
  });
}

TEST_P(Channels, ReceiveTagsInReversedOrder) {
  on_all([](ChannelRank& self) {
    const int other = self.rank() ^ 1;
    if (other >= self.ranks()) return;
    std::vector<Bytes> out, in;
    Futures sends;
    for (int tag = 0; tag < kMany; ++tag) {
      const size_t bytes = kSizes[static_cast<size_t>(tag) % 7];
      out.push_back(noise(bytes, static_cast<uint32_t>(tag)));
      in.emplace_back(bytes);
    }
    for (int tag = 0; tag < kMany; ++tag) {
      sends.push_back(self.send(other, tag, out[static_cast<size_t>(tag)]));
    }
    for (int tag = kMany - 1; tag >= 0; --tag) {
      self.receive(other, tag, in[static_cast<size_t>(tag)]).get();
    }
    wait_for(sends);
    require(in == out, "another message");
  });
}

TEST_P(Channels, DoNotLockUpIfAllSendLargeBytessFirst) {
  on_all([](ChannelRank& self) {
    constexpr size_t kBytes = 8 << 20;
    const int next = self.next(), previous = self.previous();
    for (uint32_t round = 0; round < 3; ++round) {
      const Bytes mine = noise(kBytes, round);
      Bytes got(kBytes);
      auto sent = self.send(next, 5, mine);
      auto received = self.receive(previous, 5, got);
      sent.get();
      received.get();
      require(got == mine, "another message");
    }
  });
}

TEST_P(Channels, KeepTheOrderOfManyThatWaitForTheirReceiver) {
  on_all([](ChannelRank& self) {
    constexpr size_t kMessages = 200;
    const int next = self.next(), previous = self.previous();
    std::vector<Bytes> out, in;
    Futures sends, receives;
    for (size_t i = 0; i < kMessages; ++i) {
      const size_t bytes = i % 10 == 0 ? 10'000 : 100;
      out.push_back(noise(bytes, static_cast<uint32_t>(i)));
      in.emplace_back(bytes);
    }
    for (const auto& message : out) {
      sends.push_back(self.send(next, 1, message));
    }
    self.barrier();
    for (auto& message : in) {
      receives.push_back(self.receive(previous, 1, message));
    }
    wait_for(receives);
    wait_for(sends);
    require(in == out, "another order");
  });
}

TEST_P(Channels, ReceiveFromAnySource) {
  on_all([](ChannelRank& self) {
    constexpr int kEach = 20;
    const size_t bytes = 3 * kHeadBytes / 2;
    if (self.rank() != 0) {
      const Bytes mine = noise(bytes, static_cast<uint32_t>(self.rank()));
      for (int i = 0; i < kEach; ++i) {
        self.send(0, 9, std::span(mine).first(i % 2 == 0 ? bytes : 64)).get();
      }
      return;
    }
    // Bytess of a source are alternately large and small, so sizes show the
    // order.
    std::vector<int> counts(static_cast<size_t>(self.ranks()), 0);
    std::vector<Bytes> expected;
    for (int rank = 0; rank < self.ranks(); ++rank) {
      expected.push_back(noise(bytes, static_cast<uint32_t>(rank)));
    }
    for (int i = 0; i < kEach / 2 * (self.ranks() - 1); ++i) {
      Bytes large(bytes);
      const int source = self.receive(kAnySource, 9, large).get();
      const auto index = static_cast<size_t>(source);
      require(large == expected.at(index), "another message");
      Bytes small(64);
      require(self.receive(source, 9, small).get() == source, "source");
      require(std::equal(small.begin(), small.end(), expected[index].begin()),
              "another message");
      ++counts[index];
    }
    for (int rank = 1; rank < self.ranks(); ++rank) {
      require(counts[static_cast<size_t>(rank)] == kEach / 2, "count");
    }
  });
}

// Threads of every rank send and receive at the same time, each with its tag.
TEST_P(Channels, ServeSeveralThreads) {
  on_all([](ChannelRank& self) {
    constexpr int kThreads = 4;
    constexpr int kRounds = 50;
    const int next = self.next(), previous = self.previous();
    std::vector<std::string> errors(kThreads);
    std::vector<std::jthread> threads;
    for (int tag = 0; tag < kThreads; ++tag) {
      threads.emplace_back([&, tag] {
        for (int round = 0; round < kRounds; ++round) {
          const size_t bytes = round % 10 == 0 ? 300'000 : 500;
          const auto seed = static_cast<uint32_t>(tag * kRounds + round);
          const Bytes mine = noise(bytes, seed);
          Bytes got(bytes);
          auto received = self.receive(previous, tag, got);
          auto sent = self.send(next, tag, mine);
          for (auto* each : {&received, &sent}) {
            const std::string error = each->error();
            if (error != "no error") errors[static_cast<size_t>(tag)] = error;
          }
          if (got != mine) errors[static_cast<size_t>(tag)] = "other data";
        }
      });
    }
    threads.clear();
    for (const auto& error : errors) require(error.empty(), error);
  });
}

// `done` starts the next operation, in whatever thread it is called.
TEST_P(Channels, GoOnInDone) {
  on_all([](ChannelRank& self) {
    constexpr int kRounds = 100;
    const int next = self.next(), previous = self.previous();
    const Bytes mine = noise(10'000, 1);
    Bytes got(mine.size());
    std::promise<std::string> end;
    std::atomic<int> open = 2;
    const auto end_if = [&](bool is_over) {
      if (is_over && --open == 0) end.set_value("");
    };
    std::function<void(int)> send = [&](int round) {
      self.channel.send(next, round, mine, self.timeout,
                        [&, round](const std::exception_ptr& error, int) {
                          require(!error, "a send failed");
                          if (round < kRounds) send(round + 1);
                          end_if(round == kRounds);
                        });
    };
    std::function<void(int)> receive = [&](int round) {
      self.channel.receive(previous, round, got, self.timeout,
                           [&, round](const std::exception_ptr& error, int) {
                             require(!error, "a receive failed");
                             if (round < kRounds) receive(round + 1);
                             end_if(round == kRounds);
                           });
    };
    receive(0);
    send(0);
    require(end.get_future().get().empty(), "end");
    require(got == mine, "another message");
    self.barrier();
  });
}

// Nobody receives yet, and a small send is done all the same, as over Gloo.
TEST_P(Channels, SendWhileTheReceiverIsInACollective) {
  on_all([](ChannelRank& self) {
    const Bytes mine = noise(64, static_cast<uint32_t>(self.rank()));
    for (int i = 0; i < 3; ++i) self.send(self.next(), i, mine).get();
    self.barrier();
    for (int i = 0; i < 3; ++i) {
      Bytes got(mine.size());
      self.receive(self.previous(), i, got).get();
      require(got == noise(64, static_cast<uint32_t>(self.previous())),
              "another message");
    }
  });
}

TEST_P(Channels, PassSmallMessagesBesideLargeOnes) {
  on_all([](ChannelRank& self) {
    const int other = self.rank() ^ 1;
    if (other >= self.ranks()) return;
    const Bytes large = noise(4 << 20, 1);
    Bytes large_in(large.size()), small(8);
    auto sent = self.send(other, 1, large);
    const Bytes eight = noise(8, 2);
    self.send(other, 2, eight).get();
    self.receive(other, 2, small).get();
    auto received = self.receive(other, 1, large_in);
    received.get();
    sent.get();
    require(small == eight && large_in == large, "another message");
  });
}

// The sender leaves at once, but its messages still arrive.
TEST_P(Channels, DeliverAfterTheSenderHasLeft) {
  on_all([](ChannelRank& self) {
    const Bytes large = noise(3 << 20, 1);
    const Bytes small = noise(1000, 2);
    if (self.rank() != 0) {
      auto sent = self.send(0, 1, large);
      for (int i = 0; i < 20; ++i) self.send(0, 2, small).get();
      sent.get();
      return;
    }
    for (int rank = 1; rank < self.ranks(); ++rank) {
      Bytes got(large.size());
      self.receive(rank, 1, got).get();
      require(got == large, "another large message");
      got.resize(small.size());
      for (int i = 0; i < 20; ++i) {
        self.receive(rank, 2, got).get();
        require(got == small, "another small message");
      }
    }
  });
}

class LargeChannels : public ChannelTest {};

TEST_P(LargeChannels, CarryMessagesOf64MiB) {
  on_all([](ChannelRank& self) {
    const Bytes mine = noise(64 << 20, 1);
    Bytes got(mine.size());
    auto sent = self.send(self.next(), 1, mine);
    self.receive(self.previous(), 1, got).get();
    sent.get();
    require(got == mine, "another message");
  });
}

const auto kWays = testing::Values(Way::kLocal, Way::kTcp, Way::kEncrypted);
const auto kKinds = testing::Values(Kind::kThreads, Kind::kProcesses);

INSTANTIATE_TEST_SUITE_P(Ranks, Channels,
                         testing::Combine(kWays, kKinds,
                                          testing::Values(2, 3, 8)),
                         WayName());
INSTANTIATE_TEST_SUITE_P(Ranks, LargeChannels,
                         testing::Combine(kWays, kKinds, testing::Values(2)),
                         WayName());

}  // namespace
}  // namespace lockstep::tcp::channel_test
