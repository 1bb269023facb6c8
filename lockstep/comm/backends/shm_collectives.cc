#include "lockstep/comm/backends/shm_collectives.h"

#include <algorithm>
#include <cstring>
#include <functional>
#include <string>
#include <vector>

#include <fmt/format.h>
#include <fmt/ranges.h>
#include <torch/csrc/distributed/c10d/Types.hpp>
#include <torch/types.h>

#include "lockstep/base/error.h"
#include "lockstep/comm/collectives/dense.h"
#include "lockstep/comm/collectives/tree_reduce.h"
#include "lockstep/comm/queue/message_work.h"

namespace lockstep {
namespace {

// The number of a place has the number of its SharedMemory, from 1, in the high
// bits, and the offset in that memory in the low bits.
constexpr int kOffsetBits = 44;

/// Returns the segment that rank 0 makes. The other ranks find it by `key`.
std::shared_ptr<const shm::Segment> open_common(
    c10d::Store& store, const std::string& key, int rank,
    const std::function<std::shared_ptr<const shm::Segment>()>& make) {
  shm::SegmentAddress address;
  if (rank == 0) {
    auto segment = make();
    address = segment->address();
    std::vector<uint8_t> message(sizeof(address));
    std::memcpy(message.data(), &address, sizeof(address));
    store.set(key, message);
    return segment;
  }
  const std::vector<uint8_t> message = store.get(key);
  if (message.size() != sizeof(address)) {
    throw CommError(
        {.code = ErrorCode::kSharedMemorySetup,
         .what = "what rank 0 put into the store is not the address of its "
                 "shared memory",
         .expected = fmt::format("{} bytes", sizeof(address)),
         .got = fmt::format("{} bytes", message.size()),
         .fix = shm::kUseOneBuild});
  }
  std::memcpy(&address, message.data(), sizeof(address));
  return shm::Segment::open(address);
}

// The length of a message of the monitored barrier.
constexpr int64_t kTextBytes = 512;

// Tags of a monitored barrier. User tags are 0 and above.
struct Tags {
  explicit Tags(uint32_t number)
      : arrival(-2 - static_cast<int>(number % (1u << 28)) * 2),
        answer(arrival - 1) {}
  int arrival;
  int answer;
};

at::Tensor message_of(const std::string& text) {
  at::Tensor message = torch::zeros({kTextBytes}, torch::kUInt8);
  std::memcpy(message.data_ptr(), text.data(),
              std::min<size_t>(text.size(), kTextBytes - 1));
  return message;
}

void wait_as_rank_0(Collectives& collectives, int size, Tags tags,
                    Collectives::Timeout timeout, bool wait_all_ranks) {
  std::vector<Collectives::Work> arrivals, answers;
  for (int peer = 1; peer < size; ++peer) {
    arrivals.push_back(collectives.recv(torch::zeros({1}, torch::kUInt8), peer,
                                        tags.arrival, timeout));
    answers.push_back(
        collectives.send(message_of("here"), peer, tags.answer, timeout));
  }
  std::vector<int> missing;
  std::string first_error;
  for (size_t i = 0; i < arrivals.size(); ++i) {
    try {
      arrivals[i]->wait();
    } catch (const CommError& error) {
      if (missing.empty()) first_error = text_of(error);
      missing.push_back(static_cast<int>(i) + 1);
      if (!wait_all_ranks) break;
    }
  }
  std::string what;
  if (!missing.empty()) {
    what = fmt::format(
        "Rank{} {} failed to pass monitoredBarrier in {} ms: timed out, or "
        "ended",
        missing.size() == 1 ? "" : "s", fmt::join(missing, ", "),
        timeout.count());
  }
  // A rank that is late finds the answer when it arrives.
  for (int peer = 1; peer < size; ++peer) {
    answers.push_back(
        collectives.send(message_of(what), peer, tags.answer, timeout));
  }
  if (missing.empty()) return;
  throw CommError({.code = ErrorCode::kCollectiveFailed,
                   .what = what,
                   .got = first_error,
                   .fix = "look at what those ranks do"});
}

std::string answer_of_rank_0(Collectives& collectives, Tags tags,
                             Collectives::Timeout timeout) {
  const at::Tensor message = torch::zeros({kTextBytes}, torch::kUInt8);
  collectives.recv(message, 0, tags.answer, timeout)->wait();
  return static_cast<const char*>(message.const_data_ptr());
}

/// Runs c10d's monitored barrier, by messages with tags below user tags. Each
/// rank tells rank 0 that it has arrived, and gets two answers: that rank 0 has
/// arrived, and how the barrier ended. So every rank waits up to `timeout` for
/// rank 0 to arrive, then as long again, and names the same ranks as rank 0.
/// `number` counts the monitored barriers of this world. It is part of the
/// tags, so that messages of an earlier barrier that failed are not mistaken
/// for those of this one.
///
/// Throws CommError that names the ranks which did not arrive in time: all of
/// them, or the first.
void shm_monitored_barrier(Collectives& collectives, int rank, int size,
                           uint32_t number, Collectives::Timeout timeout,
                           bool wait_all_ranks) {
  const Tags tags(number);
  if (rank == 0) {
    wait_as_rank_0(collectives, size, tags, timeout, wait_all_ranks);
    return;
  }
  std::string failure;
  try {
    collectives.send(torch::ones({1}, torch::kUInt8), 0, tags.arrival, timeout)
        ->wait();
    answer_of_rank_0(collectives, tags, timeout);
    failure = answer_of_rank_0(collectives, tags, timeout);
  } catch (const CommError& error) {
    throw CommError(
        {.code = ErrorCode::kCollectiveFailed,
         .what = fmt::format("rank {} came to monitoredBarrier, but rank 0 did "
                             "not answer: timed out, or ended",
                             rank),
         .got = text_of(error),
         .fix = "look at rank 0's own output"});
  }
  if (failure.empty()) return;
  throw CommError({.code = ErrorCode::kCollectiveFailed,
                   .what = fmt::format("rank 0 says: {}", failure),
                   .fix = "look at what those ranks do"});
}

}  // namespace

ShmCollectives::ShmCollectives(const c10::intrusive_ptr<c10d::Store>& store,
                               int rank, int size, Timeout timeout)
    : HostCollectives(rank, size),
      p2p_(open_common(*store, "shm/mail", rank,
                       [&] { return shm::P2pSegment::make(size); }),
           rank, size),
      group_(open_common(*store, "shm/segment", rank,
                         [&] { return shm::Group::make_segment(size); }),
             rank, size, timeout) {}

void ShmCollectives::begin(const shm::Call& call, Timeout timeout) {
  group_.begin(call, timeout);
}

void ShmCollectives::all_reduce_bytes(Bytes data,
                                      const shm::Reduction& reduction) {
  // Short data is reduced faster than the ranks could exchange its place.
  const bool is_short = data.size() <= shm::one_shot_bytes(size());
  if (shares_ > 0 && !is_short) {
    const Place place = place_of(data);
    if (are_all_shared(place, reduction.factor)) {
      const auto of_ranks = all_places(*place.memory, data.size());
      return shm::all_reduce_shared(group_, of_ranks, reduction);
    }
  }
  if (reduction.combine_scaled) shm::scale(data, reduction);
  shm::all_reduce(group_, data, reduction);
}

void ShmCollectives::reduce_bytes(Bytes data, int root,
                                  const shm::Reduction& reduction) {
  shm::reduce(group_, data, root, reduction);
}

void ShmCollectives::broadcast_bytes(Bytes data, int root) {
  shm::broadcast(group_, data, root);
}

void ShmCollectives::all_gather_bytes(ConstBytes input,
                                      std::span<const Bytes> outputs) {
  shm::all_gather(group_, input, outputs);
}

void ShmCollectives::gather_bytes(ConstBytes input,
                                  std::span<const Bytes> outputs, int) {
  shm::all_gather(group_, input, outputs);
}

void ShmCollectives::scatter_bytes(Bytes output,
                                   std::span<const ConstBytes> inputs,
                                   int root) {
  shm::scatter(group_, output, inputs, root);
}

void ShmCollectives::reduce_scatter_bytes(Bytes output,
                                          std::span<const ConstBytes> inputs,
                                          const shm::Reduction& reduction) {
  shm::reduce_scatter(group_, output, inputs, reduction);
}

void ShmCollectives::all_to_all_bytes(std::span<const Bytes> outputs,
                                      std::span<const ConstBytes> inputs) {
  shm::all_to_all(group_, outputs, inputs);
}

void ShmCollectives::wait_for_all() { shm::barrier(group_); }

void ShmCollectives::monitored_barrier(Timeout timeout, bool wait_all_ranks) {
  const uint32_t number = monitored_barriers_++;
  shm_monitored_barrier(*this, rank(), size(), number, timeout, wait_all_ranks);
}

Collectives::Work ShmCollectives::send(const at::Tensor& tensor, int to,
                                       int tag, Timeout timeout) {
  auto work =
      c10::make_intrusive<MessageWork>(rank(), c10d::OpType::SEND, tensor);
  p2p_.send(to, tag, work->bytes(), timeout, done_of(work, callback_threads_));
  return work;
}

Collectives::Work ShmCollectives::recv(const at::Tensor& tensor, int from,
                                       int tag, Timeout timeout) {
  auto work =
      c10::make_intrusive<MessageWork>(rank(), c10d::OpType::RECV, tensor);
  p2p_.receive(from, tag, work->bytes(), timeout,
               done_of(work, callback_threads_));
  return work;
}

Collectives::Work ShmCollectives::recv_any(const at::Tensor& tensor, int tag,
                                           Timeout timeout) {
  auto work = c10::make_intrusive<MessageWork>(
      rank(), c10d::OpType::RECVANYSOURCE, tensor);
  p2p_.receive_any(tag, work->bytes(), timeout,
                   done_of(work, callback_threads_));
  return work;
}

SharedMemory ShmCollectives::share(size_t bytes, Timeout timeout) {
  struct Message {
    shm::SegmentAddress address;
    uint64_t bytes;
  };
  const auto own_segment = shm::Segment::create(bytes);
  const Message message{own_segment->address(), bytes};
  std::vector<Message> all(static_cast<size_t>(size()));
  std::vector<Bytes> outputs;
  for (auto& each : all) {
    outputs.push_back(std::as_writable_bytes(std::span(&each, 1)));
  }
  group_.begin({.operation = shm::Operation::kShareMemory}, timeout);
  shm::all_gather(group_, std::as_bytes(std::span(&message, 1)), outputs);
  std::vector<std::shared_ptr<const shm::Segment>> segments;
  std::vector<size_t> sizes;
  try {
    for (const auto& each : all) {
      segments.push_back(shm::Segment::open(each.address));
      sizes.push_back(std::min(each.bytes, each.address.bytes));
    }
  } catch (const CommError& error) {
    // A rank that failed has freed its memory. sync() then throws the reason.
    group_.sync();
    group_.abort(text_of(error));
    throw;
  } catch (const Error& error) {
    group_.abort(text_of(error));
    throw;
  }
  // No rank may close the file of its segment before all ranks have opened it.
  group_.sync();
  own_segment->close_file();
  SharedMemory memory(std::move(segments), std::move(sizes));
  std::erase_if(shared_,
                [](const auto& each) { return each.second.expired(); });
  shared_.emplace(++shares_, memory.impl_);
  return memory;
}

ShmCollectives::Place ShmCollectives::place_of(ConstBytes bytes) const {
  const std::byte* data = bytes.data();
  for (const auto& [number, left] : shared_) {
    auto memory = left.lock();
    if (!memory) continue;
    const auto own_bytes =
        memory->segments[static_cast<size_t>(rank())]->bytes();
    const bool is_inside =
        std::greater_equal<>()(data, own_bytes.data()) &&
        std::less_equal<>()(data + bytes.size(),
                            own_bytes.data() + own_bytes.size());
    if (is_inside && !own_bytes.empty()) {
      const auto offset = static_cast<uint64_t>(data - own_bytes.data());
      return {.memory = std::move(memory),
              .number = number << kOffsetBits | offset};
    }
  }
  return {};
}

// A rank that has a tensor in a shared memory also has the other ranks' parts
// of that memory mapped. It may have unmapped other shared memories, so all
// places must be in the same one.
bool ShmCollectives::are_all_shared(const Place& own_place, double factor) {
  group_.announce(own_place.number, factor);
  group_.sync();
  const shm::Group::Announced& places = group_.announced();
  return places.smallest != 0 &&
         places.smallest >> kOffsetBits == places.largest >> kOffsetBits;
}

std::vector<std::span<std::byte>> ShmCollectives::all_places(
    const SharedMemory::Impl& memory, size_t bytes) const {
  std::vector<Bytes> spans;
  for (int rank = 0; rank < size(); ++rank) {
    const size_t offset =
        group_.value_of(rank) & ((uint64_t{1} << kOffsetBits) - 1);
    const Bytes segment = memory.segments[static_cast<size_t>(rank)]->bytes();
    if (offset > segment.size() || bytes > segment.size() - offset) {
      throw CommError(
          {.code = ErrorCode::kSharedMemorySetup,
           .what = fmt::format("rank {} announced a tensor that is not in its "
                               "shared memory",
                               rank),
           .expected = fmt::format("a place in {} bytes", segment.size()),
           .got = fmt::format("{} bytes at {}", bytes, offset),
           .fix = shm::kUseOneBuild});
    }
    spans.push_back(segment.subspan(offset, bytes));
  }
  return spans;
}

}  // namespace lockstep
