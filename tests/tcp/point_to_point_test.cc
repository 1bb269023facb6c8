#include "lockstep/tcp/point_to_point.h"

#include <atomic>
#include <functional>
#include <future>
#include <thread>

#include <gtest/gtest.h>

#include "tests/tcp/ranks.h"

namespace lockstep::tcp::point_to_point_test {
namespace {

static_assert(shm::kSmallLimit == kEagerBytes &&
              shm::kTooManySmall > kMaxCredit / kEagerBytes);

class TcpPointToPoints : public shm::P2pTest {};

// Threads of every rank send and receive at the same time, each with its tag.
TEST_P(TcpPointToPoints, ServeSeveralThreads) {
  on_all([](P2pRank& self) {
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
TEST_P(TcpPointToPoints, GoOnInDone) {
  on_all([](P2pRank& self) {
    constexpr int kRounds = 100;
    const int next = self.next(), previous = self.previous();
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
TEST_P(TcpPointToPoints, OvertakeLargeMessagesWithOtherTags) {
  on_all([](P2pRank& self) {
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
TEST_P(TcpPointToPoints, ArriveAfterTheirSenderHasLeft) {
  on_all([](P2pRank& self) {
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

INSTANTIATE_TEST_SUITE_P(Ranks, TcpPointToPoints,
                         testing::Combine(testing::Values(Kind::kThreads,
                                                          Kind::kProcesses),
                                          testing::Values(2, 3, 4, 8)),
                         shm::InstanceName());

}  // namespace
}  // namespace lockstep::tcp::point_to_point_test
