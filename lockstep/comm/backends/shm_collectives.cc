#include "lockstep/comm/backends/shm_collectives.h"

#include <algorithm>
#include <cstring>
#include <functional>

#include <fmt/format.h>
#include <torch/csrc/distributed/c10d/Types.hpp>
#include <torch/torch.h>

#include "lockstep/base/error.h"
#include "lockstep/comm/backends/shm_monitored_barrier.h"
#include "lockstep/comm/collectives/call_of.h"
#include "lockstep/comm/collectives/dense.h"
#include "lockstep/comm/collectives/tree_reduce.h"
#include "lockstep/comm/queue/message_work.h"

namespace lockstep {
namespace {

// The number of a place is the memory's, from 1, above the offset in it.
constexpr int kOffsetBits = 44;

/// The segment that rank 0 makes, which the others find by `key`.
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
  // What is short is done before the ranks would know of each other's places.
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
  const auto own = shm::Segment::create(bytes);
  const Message message{own->address(), bytes};
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
    // A rank that failed has taken its memory along. If so, this throws why.
    group_.sync();
    group_.abort(error.what());
    throw;
  } catch (const Error& error) {
    group_.abort(error.what());
    throw;
  }
  // Until all have opened it, no rank may let go of its own.
  group_.sync();
  own->close_file();
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
    const auto own = memory->segments[static_cast<size_t>(rank())]->bytes();
    const bool is_inside =
        std::greater_equal<>()(data, own.data()) &&
        std::less_equal<>()(data + bytes.size(), own.data() + own.size());
    if (is_inside && !own.empty()) {
      const auto offset = static_cast<uint64_t>(data - own.data());
      return {.memory = std::move(memory),
              .number = number << kOffsetBits | offset};
    }
  }
  return {};
}

// A rank that has a tensor in a memory has that memory's other parts mapped as
// well. Of another memory than its own it may have let go, so all places have
// to be in one.
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
