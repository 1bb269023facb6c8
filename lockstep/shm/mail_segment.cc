#include "lockstep/shm/mail_segment.h"

#include <new>
#include <unistd.h>

#include <fmt/format.h>

#include "lockstep/base/error.h"
#include "lockstep/base/host_name.h"
#include "lockstep/shm/group.h"

namespace lockstep::shm {
namespace {

constexpr uint64_t kMailMagic = 0x314c414d4b434f4c;  // "LOCKMAL1"

struct Header {
  uint64_t magic;
  int32_t ranks;
};

constexpr size_t kLinesOffset = 64;
static_assert(sizeof(Header) <= kLinesOffset);
static_assert(sizeof(MailLine) % 64 == 0 && sizeof(MessageRing) % 64 == 0);

size_t rings_offset(int ranks) {
  return kLinesOffset + static_cast<size_t>(ranks) * sizeof(MailLine);
}

size_t bytes_for(int ranks) {
  const auto count = static_cast<size_t>(ranks);
  return rings_offset(ranks) + count * count * sizeof(MessageRing);
}

}  // namespace

std::shared_ptr<const Segment> MailSegment::make(int ranks) {
  check_rank_count(ranks);
  auto segment = Segment::create(bytes_for(ranks));
  new (segment->bytes().data()) Header{kMailMagic, ranks};
  return segment;
}

MailSegment::MailSegment(std::shared_ptr<const Segment> segment, int ranks)
    : segment_(std::move(segment)), ranks_(ranks) {
  Header header{};
  if (segment_->bytes().size() >= sizeof(header)) {
    header = *reinterpret_cast<const Header*>(segment_->bytes().data());
  }
  if (ranks >= 1 && ranks <= kMaxRanks && header.magic == kMailMagic &&
      header.ranks == ranks && segment_->bytes().size() >= bytes_for(ranks)) {
    return;
  }
  throw CommError({.code = ErrorCode::kSharedMemorySetup,
                   .what = "rank 0's shared memory is for another world",
                   .expected = fmt::format("mailboxes of {} ranks", ranks),
                   .got = fmt::format("{} bytes, {} ranks",
                                      segment_->bytes().size(), header.ranks),
                   .fix = kUseOneBuild});
}

MailLine& MailSegment::line(int rank) const {
  std::byte* lines = segment_->bytes().data() + kLinesOffset;
  return reinterpret_cast<MailLine*>(lines)[rank];
}

MessageRing& MailSegment::ring(int from, int to) const {
  std::byte* rings = segment_->bytes().data() + rings_offset(ranks_);
  return reinterpret_cast<MessageRing*>(rings)[from * ranks_ + to];
}

std::string MailSegment::process_name(int rank) const {
  if (line(rank).state.load() < MailLine::State::kHere) return "not here yet";
  return fmt::format("host {}, pid {}", host_name(), line(rank).pid.load());
}

}  // namespace lockstep::shm
