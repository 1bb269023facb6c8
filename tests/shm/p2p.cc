#include "tests/shm/p2p.h"

#include <random>
#include <stdexcept>
#include <utility>

namespace lockstep::shm {

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

std::vector<std::string> run_p2p(Kind kind, int ranks, const P2pTask& task) {
  const auto segment = P2pSegment::make(ranks);
  const SegmentAddress address = segment->address();
  return run_ranks(kind, ranks, [&](Group& group) {
    PointToPoint p2p(Segment::open(address), group.rank(), ranks);
    P2pRank self{p2p, group};
    try {
      task(self);
    } catch (const std::exception& error) {
      p2p.abort(error.what());
      throw;
    }
  });
}

}  // namespace lockstep::shm
