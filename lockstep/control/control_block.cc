#include "lockstep/control/control_block.h"

#include <charconv>
#include <type_traits>
#include <vector>

#include <fmt/format.h>

#include "lockstep/base/error.h"
#include "lockstep/base/round_up.h"

namespace lockstep::control {
namespace {

// Depends on the layout, because a worker may come from another build than its
// agent.
constexpr uint64_t kMagic =
    0x31676150736b634cULL ^ sizeof(ControlHeader) << 32 ^ sizeof(WorkerSlot);
constexpr size_t kFields = 5;

static_assert(std::atomic<uint64_t>::is_always_lock_free);
static_assert(std::is_trivially_copyable_v<RankAssignment>);

// The header comes first, then a slot for each worker.
constexpr size_t kSlotsAt =
    round_up(sizeof(ControlHeader), alignof(WorkerSlot));

size_t bytes_for(size_t workers) {
  return kSlotsAt + workers * sizeof(WorkerSlot);
}

std::vector<uint64_t> numbers_in(const std::string& text) {
  std::vector<uint64_t> numbers;
  const char* at = text.data();
  const char* const end = at + text.size();
  while (at < end) {
    uint64_t number = 0;
    const auto [stop, error] = std::from_chars(at, end, number);
    if (error != std::errc() || (stop < end && *stop != ':')) return {};
    numbers.push_back(number);
    at = stop + 1;
  }
  return numbers;
}

}  // namespace

const char* name_of(Phase phase) {
  constexpr std::array kNames{"start",      "data",   "forward",  "backward",
                              "all-reduce", "update", "snapshot", "checkpoint",
                              "evaluate",   "wait",   "end"};
  const auto index = static_cast<size_t>(phase);
  return index < kNames.size() ? kNames[index] : "?";
}

ControlBlock ControlBlock::create(int workers) {
  ControlBlock block(
      shm::Segment::create(bytes_for(static_cast<size_t>(workers))), 0);
  ControlHeader& header = block.header();
  header.magic = kMagic;
  header.workers = static_cast<uint32_t>(workers);
  return block;
}

ControlBlock ControlBlock::open(const std::string& text) {
  const auto numbers = numbers_in(text);
  if (numbers.size() != kFields) {
    throw CommError({.code = ErrorCode::kBadVariable,
                     .what = std::string("can't use ") + kAgentVariable,
                     .expected = "what `lockstep run` sets",
                     .got = text.substr(0, 80)});
  }
  ControlBlock block(shm::Segment::open({.pid = static_cast<pid_t>(numbers[0]),
                                         .fd = static_cast<int>(numbers[1]),
                                         .inode = numbers[2],
                                         .bytes = numbers[3]}),
                     static_cast<int>(numbers[4]));
  const size_t bytes = block.segment_->bytes().size();
  const bool is_valid = bytes >= kSlotsAt && block.header().magic == kMagic &&
                        bytes_for(block.header().workers) <= bytes &&
                        numbers[4] < block.header().workers;
  if (!is_valid) {
    throw CommError(
        {.code = ErrorCode::kBadVariable,
         .what = std::string(kAgentVariable) + " leads to no control block",
         .expected = "an agent of this version of Lockstep",
         .got = text});
  }
  return block;
}

ControlHeader& ControlBlock::header() const {
  return *reinterpret_cast<ControlHeader*>(segment_->bytes().data());
}

WorkerSlot& ControlBlock::slot(int local_rank) const {
  return reinterpret_cast<WorkerSlot*>(segment_->bytes().data() +
                                       kSlotsAt)[local_rank];
}

std::string ControlBlock::variable(int local_rank) const {
  const auto address = segment_->address();
  return fmt::format("{}:{}:{}:{}:{}", address.pid, address.fd, address.inode,
                     address.bytes, local_rank);
}

}  // namespace lockstep::control
