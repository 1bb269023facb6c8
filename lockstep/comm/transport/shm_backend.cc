#include <algorithm>
#include <cstdint>
#include <cstring>
#include <functional>
#include <map>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include <fmt/format.h>

#include "lockstep/base/error.h"
#include "lockstep/comm/transport/host_backend.h"
#include "lockstep/comm/transport/shared_memory_impl.h"
#include "lockstep/shm/group.h"
#include "lockstep/shm/point_to_point.h"

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
        {.code = ErrorCode::kNoSharedMemory,
         .what = "what rank 0 put into the store is not the address of its "
                 "shared memory",
         .expected = fmt::format("{} bytes", sizeof(address)),
         .got = fmt::format("{} bytes", message.size()),
         .fix = shm::kUseOneBuild});
  }
  std::memcpy(&address, message.data(), sizeof(address));
  return shm::Segment::open(address);
}

class ShmBackend : public HostBackend {
 public:
  ShmBackend(const c10::intrusive_ptr<c10d::Store>& store, int rank, int size,
             Timeout timeout)
      : rank_(rank),
        size_(size),
        p2p_(open_common(*store, "shm/mail", rank,
                         [&] { return shm::P2pSegment::make(size); }),
             rank, size),
        group_(open_common(*store, "shm/segment", rank,
                           [&] { return shm::Group::make_segment(size); }),
               rank, size, timeout) {}

  std::string name() const override { return "shm"; }

  void begin(const shm::Call& call, Timeout timeout) override {
    group_.begin(call, timeout);
  }

  // Does not copy bytes that are in the same SharedMemory on every rank.
  void all_reduce(Bytes data, const shm::Reduction& reduction) override {
    // Short data is reduced faster than the ranks could exchange its place.
    const bool is_short = data.size() <= shm::one_shot_bytes(size_);
    if (shares_ > 0 && !is_short) {
      const Place place = place_of(data);
      if (are_all_shared(place, reduction.factor)) {
        const auto per_rank = all_places(*place.memory, data.size());
        return shm::all_reduce_shared(group_, per_rank, reduction);
      }
    }
    if (reduction.combine_scaled) shm::scale(data, reduction);
    shm::all_reduce(group_, data, reduction);
  }

  void reduce(Bytes data, int root, const shm::Reduction& reduction) override {
    shm::reduce(group_, data, root, reduction);
  }

  void broadcast(Bytes data, int root) override {
    shm::broadcast(group_, data, root);
  }

  void all_gather(ConstBytes input, std::span<const Bytes> outputs) override {
    shm::all_gather(group_, input, outputs);
  }

  void gather(ConstBytes input, std::span<const Bytes> outputs, int) override {
    shm::all_gather(group_, input, outputs);
  }

  void scatter(Bytes output, std::span<const ConstBytes> inputs,
               int root) override {
    shm::scatter(group_, output, inputs, root);
  }

  void reduce_scatter(Bytes output, std::span<const ConstBytes> inputs,
                      const shm::Reduction& reduction) override {
    shm::reduce_scatter(group_, output, inputs, reduction);
  }

  void all_to_all(std::span<const Bytes> outputs,
                  std::span<const ConstBytes> inputs) override {
    shm::all_to_all(group_, outputs, inputs);
  }

  void barrier() override { shm::barrier(group_); }
  bool can_share_memory() const override { return true; }

  SharedMemory share(size_t bytes, Timeout timeout) override {
    struct Message {
      shm::SegmentAddress address;
      uint64_t bytes;
    };
    const auto own_segment = shm::Segment::create(bytes);
    const Message message{own_segment->address(), bytes};
    std::vector<Message> all(static_cast<size_t>(size_));
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
    // A rank may drop its segment when all ranks have opened it.
    group_.sync();
    auto memory = std::make_shared<const SharedMemory::Impl>(
        SharedMemory::Impl{std::move(segments), std::move(sizes)});
    std::erase_if(shared_,
                  [](const auto& each) { return each.second.expired(); });
    shared_.emplace(++shares_, memory);
    return SharedMemory(std::move(memory));
  }

  shm::P2pChannel& messages() override { return p2p_; }

  void abort(const std::string& reason) noexcept override {
    group_.abort(reason);
    p2p_.abort(reason);
  }

 private:
  // Location of a tensor in this rank's shared memory.
  struct Place {
    std::shared_ptr<const SharedMemory::Impl> memory;  // null: none
    uint64_t number = 0;  // of the memory and the byte in it; 0: none
  };

  Place place_of(ConstBytes bytes) const {
    const std::byte* data = bytes.data();
    for (const auto& [number, left] : shared_) {
      auto memory = left.lock();
      if (!memory) continue;
      const auto own_bytes =
          memory->segments[static_cast<size_t>(rank_)]->bytes();
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

  // Sends this rank's place and factor to the other ranks. Returns whether the
  // tensors of all ranks are in the same shared memory. A rank that has a
  // tensor in a shared memory also has the other ranks' parts of that memory
  // mapped. It may have unmapped other shared memories, so all places must be
  // in the same one.
  bool are_all_shared(const Place& own_place, double factor) {
    group_.announce(own_place.number, factor);
    group_.sync();
    const shm::Group::Announced& places = group_.announced();
    return places.smallest != 0 &&
           places.smallest >> kOffsetBits == places.largest >> kOffsetBits;
  }

  // Returns the places of all ranks.
  std::vector<Bytes> all_places(const SharedMemory::Impl& memory,
                                size_t bytes) const {
    std::vector<Bytes> spans;
    for (int rank = 0; rank < size_; ++rank) {
      const size_t offset =
          group_.value_of(rank) & ((uint64_t{1} << kOffsetBits) - 1);
      const Bytes segment = memory.segments[static_cast<size_t>(rank)]->bytes();
      if (offset > segment.size() || bytes > segment.size() - offset) {
        throw CommError(
            {.code = ErrorCode::kNoSharedMemory,
             .what =
                 fmt::format("rank {} announced a tensor that is not in its "
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

  int rank_;
  int size_;
  shm::PointToPoint p2p_;
  // Made after p2p_, so that when all ranks have joined the group, all of them
  // have a p2p_.
  shm::Group group_;
  // The memory made by share(), by the number of the call, which is the same on
  // every rank. Memory that is no longer used has expired.
  std::map<uint64_t, std::weak_ptr<const SharedMemory::Impl>> shared_;
  uint64_t shares_ = 0;  // number of share() calls
};

}  // namespace

std::unique_ptr<HostBackend> make_shm_backend(
    const c10::intrusive_ptr<c10d::Store>& store, int rank, int size,
    HostBackend::Timeout timeout) {
  return std::make_unique<ShmBackend>(store, rank, size, timeout);
}

}  // namespace lockstep
