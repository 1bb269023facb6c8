#include "lockstep/tcp/point_to_point.h"

#include <algorithm>
#include <array>
#include <atomic>
#include <functional>
#include <future>
#include <random>
#include <thread>
#include <tuple>

#include <gtest/gtest.h>

#include "tests/tcp/p2p_ranks.h"

namespace lockstep::tcp::point_to_point_test {
namespace {

// Nothing, small up to the limit, and beyond.
constexpr std::array<size_t, 8> kSizes{
    0, 1, 64, kEagerBytes - 1, kEagerBytes, kEagerBytes + 1, 65'536, 1'048'579};

using Futures = std::vector<Awaited>;

void wait_for(Futures& futures) {
  for (auto& future : futures) future.get();
  futures.clear();
}

class PointToPoints : public testing::TestWithParam<std::tuple<Kind, int>> {
 protected:
  void on_all(const TcpTask& task) {
    const auto [kind, ranks] = GetParam();
    for (const auto& message : run_p2p(kind, ranks, task)) {
      EXPECT_EQ(message, "");
    }
  }
};

TEST_P(PointToPoints, PassOnAlongARing) {
  on_all([](TcpRank& self) {
    const int next = (self.rank() + 1) % self.ranks();
    const int previous = (self.rank() + self.ranks() - 1) % self.ranks();
    for (const size_t bytes : kSizes) {
      const auto seed = static_cast<uint32_t>(bytes * 10);
      const Message mine = noise(bytes, seed + static_cast<uint32_t>(next));
      Message got(bytes);
      auto sent = self.send(next, 0, mine);
      require(self.receive(previous, 0, got).get() == previous, "source");
      sent.get();
      require(got == noise(bytes, seed + static_cast<uint32_t>(self.rank())),
              std::to_string(bytes));
    }
  });
}

// A plan that all ranks know: of every pair, messages with random sizes and
// tags, received in another order than sent where the tags allow.
TEST_P(PointToPoints, CarryRandomSizesAndTagsBetweenAllPairs) {
  on_all([](TcpRank& self) {
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
    std::vector<Message> out;
    std::vector<std::pair<Message, Message>> got_and_expected;
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
        got_and_expected.emplace_back(Message(p.bytes), noise(p.bytes, p.seed));
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

// More than the receiver keeps unsolicited, so some small ones are announced.
TEST_P(PointToPoints, ReceiveTagsInReversedOrder) {
  on_all([](TcpRank& self) {
    constexpr int kTags = 48;
    const int other = self.rank() ^ 1;
    if (other >= self.ranks()) return;
    std::vector<Message> out, in;
    Futures sends;
    for (int tag = 0; tag < kTags; ++tag) {
      const size_t bytes = kSizes[static_cast<size_t>(tag) % 7];
      out.push_back(noise(bytes, static_cast<uint32_t>(tag)));
      in.emplace_back(bytes);
    }
    for (int tag = 0; tag < kTags; ++tag) {
      sends.push_back(self.send(other, tag, out[static_cast<size_t>(tag)]));
    }
    for (int tag = kTags - 1; tag >= 0; --tag) {
      self.receive(other, tag, in[static_cast<size_t>(tag)]).get();
    }
    wait_for(sends);
    require(in == out, "another message");
  });
}

TEST_P(PointToPoints, DoNotLockUpIfAllSendLargeMessagesFirst) {
  on_all([](TcpRank& self) {
    constexpr size_t kBytes = 8 << 20;
    const int next = (self.rank() + 1) % self.ranks();
    const int previous = (self.rank() + self.ranks() - 1) % self.ranks();
    for (uint32_t round = 0; round < 3; ++round) {
      const Message mine = noise(kBytes, round);
      Message got(kBytes);
      auto sent = self.send(next, 5, mine);
      auto received = self.receive(previous, 5, got);
      sent.get();
      received.get();
      require(got == mine, "another message");
    }
  });
}

TEST_P(PointToPoints, KeepTheOrderOfManyThatWaitForTheirReceiver) {
  on_all([](TcpRank& self) {
    constexpr size_t kMessages = 200;
    const int next = (self.rank() + 1) % self.ranks();
    const int previous = (self.rank() + self.ranks() - 1) % self.ranks();
    std::vector<Message> out, in;
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

TEST_P(PointToPoints, ReceiveFromAnySource) {
  on_all([](TcpRank& self) {
    constexpr int kEach = 20;
    const size_t bytes = 3 * kEagerBytes / 2;
    if (self.rank() != 0) {
      const Message mine = noise(bytes, static_cast<uint32_t>(self.rank()));
      for (int i = 0; i < kEach; ++i) {
        self.send(0, 9, std::span(mine).first(i % 2 == 0 ? bytes : 64)).get();
      }
      return;
    }
    // Each source sends large and small messages in turn, so sizes tell order.
    std::vector<int> counts(static_cast<size_t>(self.ranks()), 0);
    std::vector<Message> expected;
    for (int rank = 0; rank < self.ranks(); ++rank) {
      expected.push_back(noise(bytes, static_cast<uint32_t>(rank)));
    }
    for (int i = 0; i < kEach / 2 * (self.ranks() - 1); ++i) {
      Message large(bytes);
      const int source = self.receive_any(9, large).get();
      const auto index = static_cast<size_t>(source);
      require(large == expected.at(index), "another message");
      Message small(64);
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
TEST_P(PointToPoints, ServeSeveralThreads) {
  on_all([](TcpRank& self) {
    constexpr int kThreads = 4;
    constexpr int kRounds = 50;
    const int next = (self.rank() + 1) % self.ranks();
    const int previous = (self.rank() + self.ranks() - 1) % self.ranks();
    std::vector<std::string> errors(kThreads);
    std::vector<std::jthread> threads;
    for (int tag = 0; tag < kThreads; ++tag) {
      threads.emplace_back([&, tag] {
        for (int round = 0; round < kRounds; ++round) {
          const size_t bytes = round % 10 == 0 ? 300'000 : 500;
          const auto seed = static_cast<uint32_t>(tag * kRounds + round);
          const Message mine = noise(bytes, seed);
          Message got(bytes);
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
TEST_P(PointToPoints, GoOnInDone) {
  on_all([](TcpRank& self) {
    constexpr int kRounds = 100;
    const int next = (self.rank() + 1) % self.ranks();
    const int previous = (self.rank() + self.ranks() - 1) % self.ranks();
    const Message mine = noise(10'000, 1);
    Message got(mine.size());
    std::promise<std::string> end;
    std::atomic<int> open = 2;
    const auto end_if = [&](bool is_over) {
      if (is_over && --open == 0) end.set_value("");
    };
    std::function<void(int)> send = [&](int round) {
      self.p2p.send(next, round, mine, self.timeout,
                    [&, round](const std::exception_ptr& error, int) {
                      require(!error, "a send failed");
                      if (round < kRounds) send(round + 1);
                      end_if(round == kRounds);
                    });
    };
    std::function<void(int)> receive = [&](int round) {
      self.p2p.receive(previous, round, got, self.timeout,
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
  });
}

// A small message is not delayed until a large one is complete, which here
// takes until the small one is received.
TEST_P(PointToPoints, OvertakeLargeMessagesWithOtherTags) {
  on_all([](TcpRank& self) {
    const int other = self.rank() ^ 1;
    if (other >= self.ranks()) return;
    const Message large = noise(4 << 20, 1);
    Message large_in(large.size()), small(8);
    auto sent = self.send(other, 1, large);
    const Message eight = noise(8, 2);
    self.send(other, 2, eight).get();
    self.receive(other, 2, small).get();
    auto received = self.receive(other, 1, large_in);
    received.get();
    sent.get();
    require(small == eight && large_in == large, "another message");
  });
}

// The sender leaves at once, but its messages still arrive.
TEST_P(PointToPoints, ArriveAfterTheirSenderHasLeft) {
  on_all([](TcpRank& self) {
    const Message large = noise(3 << 20, 1);
    const Message small = noise(1000, 2);
    if (self.rank() != 0) {
      auto sent = self.send(0, 1, large);
      for (int i = 0; i < 20; ++i) self.send(0, 2, small).get();
      sent.get();
      return;
    }
    for (int rank = 1; rank < self.ranks(); ++rank) {
      Message got(large.size());
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

INSTANTIATE_TEST_SUITE_P(
    Ranks, PointToPoints,
    testing::Combine(testing::Values(Kind::kThreads, Kind::kProcesses),
                     testing::Values(2, 3, 4, 8)),
    [](const auto& instance) {
      return std::string(std::get<0>(instance.param) == Kind::kThreads
                             ? "Threads"
                             : "Processes") +
             std::to_string(std::get<1>(instance.param));
    });

}  // namespace
}  // namespace lockstep::tcp::point_to_point_test
