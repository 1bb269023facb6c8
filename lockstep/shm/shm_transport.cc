#include "lockstep/shm/shm_transport.h"

#include <algorithm>
#include <utility>

#include <fmt/format.h>

#include "lockstep/base/error.h"
#include "lockstep/shm/collectives.h"

namespace lockstep::shm {

using transport::Reduction;

namespace {

// The number of a place has the number of its shared memory, from 1, in the
// high bits, and the offset in that memory in the low bits.
constexpr int kOffsetBits = 44;

}  // namespace

ShmTransport::ShmTransport(std::shared_ptr<const Segment> segment, int rank,
                           int size, Milliseconds timeout)
    : rank_(rank),
      size_(size),
      group_(std::move(segment), rank, size, timeout) {}

void ShmTransport::begin(const transport::Call& call, Milliseconds timeout) {
  group_.begin(call, timeout);
}

// Does not copy bytes that are in the same shared memory on every rank.
void ShmTransport::all_reduce(Bytes data, const Reduction& reduction) {
  // Short data is reduced faster than the ranks could exchange its place.
  const bool is_short = data.size() <= one_shot_bytes(size_);
  if (shares_ > 0 && !is_short) {
    const Place place = place_of(data);
    if (are_all_shared(place, reduction.factor)) {
      const auto per_rank = all_places(*place.memory, data.size());
      return all_reduce_shared(group_, per_rank, reduction);
    }
  }
  if (reduction.combine_scaled) transport::scale(data, reduction);
  shm::all_reduce(group_, data, reduction);
}

void ShmTransport::reduce(Bytes data, int root, const Reduction& reduction) {
  shm::reduce(group_, data, root, reduction);
}

void ShmTransport::broadcast(Bytes data, int root) {
  shm::broadcast(group_, data, root);
}

void ShmTransport::all_gather(ConstBytes input,
                              std::span<const Bytes> outputs) {
  shm::all_gather(group_, input, outputs);
}

void ShmTransport::gather(ConstBytes input, std::span<const Bytes> outputs,
                          int /*root*/) {
  shm::all_gather(group_, input, outputs);
}

void ShmTransport::scatter(Bytes output, std::span<const ConstBytes> inputs,
                           int root) {
  shm::scatter(group_, output, inputs, root);
}

void ShmTransport::reduce_scatter(Bytes output,
                                  std::span<const ConstBytes> inputs,
                                  const Reduction& reduction) {
  shm::reduce_scatter(group_, output, inputs, reduction);
}

void ShmTransport::all_to_all(std::span<const Bytes> outputs,
                              std::span<const ConstBytes> inputs) {
  shm::all_to_all(group_, outputs, inputs);
}

void ShmTransport::barrier() { shm::barrier(group_); }

std::shared_ptr<const std::vector<transport::RankMemory>> ShmTransport::share(
    size_t bytes, Milliseconds timeout) {
  struct Message {
    SegmentAddress address;
    uint64_t bytes;
  };
  const auto own_segment = Segment::create(bytes);
  const Message message{own_segment->address(), bytes};
  std::vector<Message> all(static_cast<size_t>(size_));
  std::vector<Bytes> outputs;
  for (auto& each : all) {
    outputs.push_back(std::as_writable_bytes(std::span(&each, 1)));
  }
  group_.begin({.operation = transport::Operation::kShareMemory}, timeout);
  shm::all_gather(group_, std::as_bytes(std::span(&message, 1)), outputs);
  Shared memory;
  try {
    for (const auto& each : all) {
      auto segment = Segment::open(each.address);
      const size_t asked = std::min(each.bytes, each.address.bytes);
      const Bytes used = segment->bytes().first(asked);
      memory.push_back({.owner = std::move(segment), .bytes = used});
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
  // A rank may drop its segment when all ranks have opened it.
  group_.sync();
  auto result = std::make_shared<const Shared>(std::move(memory));
  std::erase_if(shared_,
                [](const auto& each) { return each.second.expired(); });
  shared_.emplace(++shares_, result);
  return result;
}

void ShmTransport::abort(const std::string& reason) noexcept {
  group_.abort(reason);
}

ShmTransport::Place ShmTransport::place_of(ConstBytes bytes) const {
  for (const auto& [number, left] : shared_) {
    auto memory = left.lock();
    if (!memory) continue;
    const auto offset = (*memory)[static_cast<size_t>(rank_)].offset_of(bytes);
    if (offset) {
      return {.memory = std::move(memory),
              .number = number << kOffsetBits | uint64_t{*offset}};
    }
  }
  return {};
}

bool ShmTransport::are_all_shared(const Place& own_place, double factor) {
  group_.announce(own_place.number, factor);
  group_.sync();
  const Group::Announced& places = group_.announced();
  return places.smallest != 0 &&
         places.smallest >> kOffsetBits == places.largest >> kOffsetBits;
}

std::vector<transport::Bytes> ShmTransport::all_places(const Shared& memory,
                                                       size_t bytes) const {
  std::vector<Bytes> spans;
  for (int rank = 0; rank < size_; ++rank) {
    const size_t offset =
        group_.value_of(rank) & ((uint64_t{1} << kOffsetBits) - 1);
    const Bytes part = memory[static_cast<size_t>(rank)].bytes;
    if (offset > part.size() || bytes > part.size() - offset) {
      throw CommError(
          {.code = ErrorCode::kNoSharedMemory,
           .what = fmt::format(
               "rank {} announced a tensor that is not in its shared memory",
               rank),
           .expected = fmt::format("a place in {} bytes", part.size()),
           .got = fmt::format("{} bytes at {}", bytes, offset),
           .fix = transport::kUseOneBuild});
    }
    spans.push_back(part.subspan(offset, bytes));
  }
  return spans;
}

}  // namespace lockstep::shm
