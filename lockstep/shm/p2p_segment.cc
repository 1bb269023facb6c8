#include "lockstep/shm/p2p_segment.h"

#include <new>
#include <unistd.h>

#include <fmt/format.h>

#include "lockstep/base/error.h"
#include "lockstep/base/format.h"
#include "lockstep/base/host_identity.h"
#include "lockstep/base/out_of_resources.h"
#include "lockstep/shm/group.h"

namespace lockstep::shm {

using transport::FailureText;
using transport::kUseOneBuild;
namespace {

using State = P2pRankState::State;

constexpr uint64_t kP2pMagic = 0x314c414d4b434f4c;  // "LOCKMAL1"

struct Header {
  uint64_t magic;
  int32_t ranks;
};

constexpr size_t kLinesOffset = 64;
static_assert(sizeof(Header) <= kLinesOffset);
static_assert(sizeof(P2pRankState) % 64 == 0 && sizeof(MessageRing) % 64 == 0);

size_t rings_offset(int ranks) {
  return kLinesOffset + static_cast<size_t>(ranks) * sizeof(P2pRankState);
}

size_t bytes_for(int ranks) {
  const auto count = static_cast<size_t>(ranks);
  return rings_offset(ranks) + count * count * sizeof(MessageRing);
}

}  // namespace

std::shared_ptr<const Segment> P2pSegment::make(int ranks) {
  check_rank_count(ranks);
  auto segment = Segment::create(bytes_for(ranks));
  new (segment->bytes().data()) Header{kP2pMagic, ranks};
  return segment;
}

P2pSegment::P2pSegment(std::shared_ptr<const Segment> segment, int ranks)
    : segment_(std::move(segment)), ranks_(ranks) {
  Header header{};
  if (segment_->bytes().size() >= sizeof(header)) {
    header = *reinterpret_cast<const Header*>(segment_->bytes().data());
  }
  if (ranks >= 1 && ranks <= kMaxRanks && header.magic == kP2pMagic &&
      header.ranks == ranks && segment_->bytes().size() >= bytes_for(ranks)) {
    return;
  }
  throw CommError(
      {.code = ErrorCode::kNoSharedMemory,
       .what = "rank 0's shared memory belongs to another process group",
       .expected = "point-to-point channels of " + counted(ranks, "rank"),
       .got = fmt::format("{} bytes, {}", segment_->bytes().size(),
                          counted(header.ranks, "rank")),
       .fix = kUseOneBuild});
}

P2pRankState& P2pSegment::line(int rank) const {
  std::byte* lines = segment_->bytes().data() + kLinesOffset;
  return reinterpret_cast<P2pRankState*>(lines)[rank];
}

MessageRing& P2pSegment::ring(int from, int to) const {
  std::byte* rings = segment_->bytes().data() + rings_offset(ranks_);
  return reinterpret_cast<MessageRing*>(rings)[from * ranks_ + to];
}

std::string P2pSegment::process_name(int rank) const {
  if (line(rank).state.load() < State::kHere) return "not here yet";
  return fmt::format("host {}, pid {}", host_name(), line(rank).pid.load());
}

Peers::Peers(const P2pSegment& segment, int rank)
    : segment_(segment),
      rank_(rank),
      processes_(static_cast<size_t>(segment.ranks())),
      ends_(static_cast<size_t>(segment.ranks())) {}

void Peers::look_at_lines() {
  for (int other = 0; other < segment_.ranks(); ++other) {
    auto& end = ends_[static_cast<size_t>(other)];
    if (other == rank_ || end) continue;
    const P2pRankState& line = segment_.line(other);
    const State state = line.state.load();
    if (state == State::kLeft) {
      end = name(other) + " left the group";
    } else if (state == State::kFailed) {
      const FailureText text = line.failure;
      end = fmt::format("{} failed: {}", name(other), transport::text_of(text));
    }
  }
}

void Peers::look_at_processes() {
  for (int other = 0; other < segment_.ranks(); ++other) {
    auto& end = ends_[static_cast<size_t>(other)];
    const P2pRankState& line = segment_.line(other);
    if (other == rank_ || end || line.state.load() < State::kHere) continue;
    PeerProcess& process = processes_[static_cast<size_t>(other)];
    const pid_t pid = line.pid.load();
    if (process.pid() == 0) {
      if (pid == ::getpid()) continue;
      try {
        process = PeerProcess(pid, line.start_time.load());
      } catch (const CommError&) {
        end = name(other) + " ended";
      } catch (const OutOfResources&) {
        continue;  // its state is not known; the next look may succeed
      }
    }
    if (!process.has_ended()) continue;
    // It may have left or failed since its line was read.
    look_at_lines();
    if (!end) end = name(other) + " ended";
  }
}

const std::optional<std::string>& Peers::end_of(int rank) const {
  return ends_[static_cast<size_t>(rank)];
}

std::string Peers::state_of(int rank) const {
  const State state = segment_.line(rank).state.load();
  if (state < State::kHere) return fmt::format("rank {} never joined", rank);
  const PeerProcess& process = processes_[static_cast<size_t>(rank)];
  return fmt::format(
      "{} {}", name(rank),
      process.pid() == 0 ? "runs in another process" : process.state());
}

std::string Peers::name(int rank) const {
  return fmt::format("rank {} ({})", rank, segment_.process_name(rank));
}

}  // namespace lockstep::shm
