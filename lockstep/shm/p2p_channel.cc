#include "lockstep/shm/p2p_channel.h"

#include <algorithm>
#include <utility>

namespace lockstep::shm {
namespace {

// Longer timeouts than this are the same, and do not overflow the clock.
constexpr std::chrono::hours kLongest{24 * 365};

P2pOperation operation_of(P2pOperation::Kind kind, int peer, int tag,
                          size_t bytes, std::chrono::milliseconds timeout,
                          P2pDone done) {
  return {.kind = kind,
          .peer = peer,
          .tag = tag,
          .bytes = bytes,
          .deadline = P2pOperation::Clock::now() +
                      std::min<std::chrono::milliseconds>(timeout, kLongest),
          .done = std::move(done)};
}

}  // namespace

void P2pChannel::send(int to, int tag, std::span<const std::byte> data,
                      milliseconds timeout, P2pDone done) {
  check_peer(to, rank_, ranks_);
  start_send(operation_of(P2pOperation::Kind::kSend, to, tag, data.size(),
                          timeout, std::move(done)),
             data);
}

void P2pChannel::receive(int from, int tag, std::span<std::byte> data,
                         milliseconds timeout, P2pDone done) {
  check_peer(from, rank_, ranks_);
  start_receive(operation_of(P2pOperation::Kind::kReceive, from, tag,
                             data.size(), timeout, std::move(done)),
                data);
}

void P2pChannel::receive_any(int tag, std::span<std::byte> data,
                             milliseconds timeout, P2pDone done) {
  if (ranks_ == 1) check_peer(rank_, rank_, 1);
  start_receive(operation_of(P2pOperation::Kind::kReceive, kAnySource, tag,
                             data.size(), timeout, std::move(done)),
                data);
}

std::string P2pChannel::ends_of(int peer) const {
  if (peer != kAnySource) return end_of(peer).value_or("");
  std::string result;
  for (int other = 0; other < ranks_; ++other) {
    if (other == rank_) continue;
    const auto& end = end_of(other);
    if (!end) return {};
    if (!result.empty()) result += ", ";
    result += *end;
  }
  return result;
}

std::exception_ptr P2pChannel::failure_of(const P2pOperation& operation) const {
  const std::string ends = ends_of(operation.peer);
  if (!ends.empty()) return ended_by(ends, operation, rank_);
  if (Clock::now() < operation.deadline) return nullptr;
  return timed_out(operation, rank_, whereabouts(operation.peer));
}

std::string P2pChannel::whereabouts(int peer) const {
  if (peer != kAnySource) return state_of(peer);
  std::string result;
  for (int other = 0; other < ranks_; ++other) {
    if (other == rank_) continue;
    if (!result.empty()) result += ", ";
    result += end_of(other).value_or(state_of(other));
  }
  return result;
}

}  // namespace lockstep::shm
