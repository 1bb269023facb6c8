#include "tests/shm/p2p.h"

#include <random>
#include <stdexcept>
#include <unistd.h>
#include <utility>

#include <gtest/gtest.h>

namespace lockstep::shm {

using transport::Operation;

Message noise(size_t bytes, uint32_t seed) {
  std::minstd_rand random(seed + 1);
  Message result(bytes);
  for (std::byte& byte : result) byte = static_cast<std::byte>(random() >> 8);
  return result;
}

P2pDone Awaited::done() const {
  return [promise = promise_](std::exception_ptr error, int source) {
    Outcome outcome{source, {}};
    try {
      if (error) std::rethrow_exception(std::move(error));
    } catch (const std::exception& caught) {
      outcome.error = caught.what();
    }
    promise->set_value(std::move(outcome));
  };
}

int Awaited::get() {
  const Outcome outcome = promise_->get_future().get();
  if (!outcome.error.empty()) throw std::runtime_error(outcome.error);
  return outcome.source;
}

std::string Awaited::error() {
  const Outcome outcome = promise_->get_future().get();
  return outcome.error.empty() ? "no error" : outcome.error;
}

Awaited P2pRank::send(int to, int tag, std::span<const std::byte> data) {
  Awaited result;
  p2p.send(to, tag, data, timeout, result.done());
  return result;
}

Awaited P2pRank::receive(int from, int tag, std::span<std::byte> data) {
  Awaited result;
  p2p.receive(from, tag, data, timeout, result.done());
  return result;
}

Awaited P2pRank::receive_any(int tag, std::span<std::byte> data) {
  Awaited result;
  p2p.receive_any(tag, data, timeout, result.done());
  return result;
}

void P2pRank::barrier() {
  group.begin({.operation = Operation::kBarrier}, group.timeout());
  group.sync();
}

void run_as(Group& group, P2pChannel& p2p, const P2pTask& task) {
  P2pRank self{p2p, group};
  try {
    task(self);
  } catch (const std::exception& error) {
    p2p.abort(error.what());
    throw;
  }
}

std::vector<std::string> run_p2p(Kind kind, int ranks, const P2pTask& task) {
  const P2pJoin join = connect_p2p(ranks);
  return run_ranks(kind, ranks, [&](Group& group) {
    run_as(group, *join(group.rank(), kind), task);
  });
}

void P2pTest::on_all(const P2pTask& task) {
  const auto [kind, ranks] = GetParam();
  for (const auto& message : run_p2p(kind, ranks, task)) {
    EXPECT_EQ(message, "");
  }
}

TwoRanks::TwoRanks(const P2pTask& task)
    : process_([&] {
        Group group(Segment::open(segment_->address()), 1, 2,
                    std::chrono::seconds(60));
        run_as(group, *join_(1, Kind::kProcesses), [&](P2pRank& rank_1) {
          rank_1.barrier();
          task(rank_1);
        });
      }),
      group_(segment_, 0, 2, std::chrono::seconds(60)),
      p2p_(join_(0, Kind::kProcesses)),
      self{*p2p_, group_} {
  self.barrier();
}

void expect_parts(const std::string& text,
                  const std::vector<std::string>& parts) {
  for (const auto& part : parts) {
    EXPECT_NE(text.find(part), std::string::npos)
        << "no '" << part << "' in: " << text;
  }
}

void sleep_on(P2pRank& /*self*/) {
  for (;;) ::pause();
}

}  // namespace lockstep::shm
