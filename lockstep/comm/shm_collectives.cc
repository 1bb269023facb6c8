#include "lockstep/comm/shm_collectives.h"

#include <algorithm>
#include <cstring>
#include <functional>

#include <fmt/format.h>
#include <torch/csrc/distributed/c10d/Types.hpp>
#include <torch/torch.h>

#include "lockstep/base/error.h"
#include "lockstep/comm/call_of.h"
#include "lockstep/comm/dense.h"
#include "lockstep/comm/mail_work.h"
#include "lockstep/comm/shm_monitored_barrier.h"
#include "lockstep/comm/tree_reduce.h"

namespace lockstep {
namespace {

using shm::Operation;
using Bytes = std::span<std::byte>;
using ConstBytes = std::span<const std::byte>;

// A place is the memory's number, from 1, above the offset in it.
constexpr int kOffsetBits = 44;

class Results {
 public:
  explicit Results(const std::vector<at::Tensor>& tensors) {
    for (const auto& tensor : tensors) {
      results_.emplace_back(tensor);
      bytes_.push_back(results_.back().bytes());
    }
  }
  std::span<const Bytes> bytes() const { return bytes_; }
  void write_back() {
    for (auto& result : results_) result.write_back();
  }

 private:
  std::vector<Result> results_;
  std::vector<Bytes> bytes_;
};

class Inputs {
 public:
  explicit Inputs(const std::vector<at::Tensor>& tensors) {
    for (const auto& tensor : tensors) {
      tensors_.push_back(dense(tensor));
      bytes_.push_back(bytes_of(tensors_.back()));
    }
  }
  std::span<const ConstBytes> bytes() const { return bytes_; }

 private:
  std::vector<at::Tensor> tensors_;
  std::vector<ConstBytes> bytes_;
};

/// The segment that rank 0 makes, which the others find by `key`.
std::shared_ptr<const shm::Segment> meet(
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
         .fix = "run the same build of Lockstep on every rank"});
  }
  std::memcpy(&address, message.data(), sizeof(address));
  return shm::Segment::open(address);
}

}  // namespace

ShmCollectives::ShmCollectives(const c10::intrusive_ptr<c10d::Store>& store,
                               int rank, int size, Timeout timeout)
    : rank_(rank),
      size_(size),
      mailbox_(meet(*store, "shm/mail", rank,
                    [&] { return shm::MailSegment::make(size); }),
               rank, size),
      group_(meet(*store, "shm/segment", rank,
                  [&] { return shm::Group::make_segment(size); }),
             rank, size, timeout) {}

void ShmCollectives::all_reduce(at::Tensor& tensor, const c10d::ReduceOp& op,
                                Timeout timeout) {
  Result result(tensor);
  const shm::Reduction reduction = tree_reduction(tensor.scalar_type(), op.op_);
  group_.begin(call_of(Operation::kAllReduce, tensor, -1, &op), timeout);
  if (op.op_ == c10d::ReduceOp::PREMUL_SUM) {
    result.dense().copy_(scaled(result.dense(), op));
  }
  const uint64_t place = place_of(result.dense());
  if (shares_ > 0 && agree_on(place)) {
    shm::all_reduce_shared(group_, at_place(place, tensor.nbytes()), reduction);
    return;
  }
  shm::all_reduce(group_, result.bytes(), reduction);
  result.write_back();
}

void ShmCollectives::reduce(at::Tensor& tensor, int root,
                            const c10d::ReduceOp& op, Timeout timeout) {
  Result result(tensor);
  const shm::Reduction reduction = tree_reduction(tensor.scalar_type(), op.op_);
  group_.begin(call_of(Operation::kReduce, tensor, root, &op), timeout);
  if (op.op_ == c10d::ReduceOp::PREMUL_SUM) {
    at::Tensor own = scaled(result.dense(), op).contiguous();
    shm::reduce(group_, bytes_of(own), root, reduction);
    if (rank_ == root) tensor.copy_(own);
    return;
  }
  shm::reduce(group_, result.bytes(), root, reduction);
  if (rank_ == root) result.write_back();
}

void ShmCollectives::broadcast(at::Tensor& tensor, int root, Timeout timeout) {
  Result result(tensor);
  group_.begin(call_of(Operation::kBroadcast, tensor, root), timeout);
  shm::broadcast(group_, result.bytes(), root);
  if (rank_ != root) result.write_back();
}

void ShmCollectives::all_gather(Tensors& outputs, const at::Tensor& input,
                                Timeout timeout) {
  check_parts(outputs, input, size_, "all_gather");
  const at::Tensor own = dense(input);
  Results results(outputs);
  group_.begin(call_of(Operation::kAllGather, input), timeout);
  shm::all_gather(group_, bytes_of(own), results.bytes());
  results.write_back();
}

void ShmCollectives::gather(Tensors& outputs, const at::Tensor& input, int root,
                            Timeout timeout) {
  if (rank_ == root) check_parts(outputs, input, size_, "gather");
  const at::Tensor own = dense(input);
  Tensors none;
  Results results(rank_ == root ? outputs : none);
  group_.begin(call_of(Operation::kGather, input, root), timeout);
  shm::all_gather(group_, bytes_of(own), results.bytes());
  results.write_back();
}

void ShmCollectives::scatter(at::Tensor& output, const Tensors& inputs,
                             int root, Timeout timeout) {
  if (rank_ == root) check_parts(inputs, output, size_, "scatter");
  Result result(output);
  const Inputs parts(rank_ == root ? inputs : Tensors());
  group_.begin(call_of(Operation::kScatter, output, root), timeout);
  shm::scatter(group_, result.bytes(), parts.bytes(), root);
  result.write_back();
}

void ShmCollectives::reduce_scatter(at::Tensor& output, const Tensors& inputs,
                                    const c10d::ReduceOp& op, Timeout timeout) {
  check_parts(inputs, output, size_, "reduce_scatter");
  Result result(output);
  Tensors parts = inputs;
  if (op.op_ == c10d::ReduceOp::PREMUL_SUM) {
    for (auto& part : parts) part = scaled(part, op);
  }
  const Inputs dense_parts(parts);
  const shm::Reduction reduction = tree_reduction(output.scalar_type(), op.op_);
  group_.begin(call_of(Operation::kReduceScatter, output, -1, &op), timeout);
  shm::reduce_scatter(group_, result.bytes(), dense_parts.bytes(), reduction);
  result.write_back();
}

void ShmCollectives::all_to_all(Tensors& outputs, const Tensors& inputs,
                                Timeout timeout) {
  const auto size = static_cast<size_t>(size_);
  if (outputs.size() != size || inputs.size() != size) {
    throw CommError(
        {.code = ErrorCode::kBadTensor,
         .what = "all_to_all needs a tensor to and from each rank",
         .expected = fmt::format("{} and {}", size, size),
         .got = fmt::format("{} and {}", inputs.size(), outputs.size())});
  }
  Results results(outputs);
  const Inputs parts(inputs);
  shm::Call call{.operation = Operation::kAllToAll};
  call.type = shm::short_text(c10::toString(inputs[0].scalar_type()));
  group_.begin(call, timeout);
  shm::all_to_all(group_, results.bytes(), parts.bytes());
  results.write_back();
}

void ShmCollectives::barrier(Timeout timeout) {
  group_.begin({.operation = Operation::kBarrier}, timeout);
  shm::barrier(group_);
}

void ShmCollectives::monitored_barrier(Timeout timeout, bool wait_all_ranks) {
  const uint32_t number = monitored_barriers_++;
  shm_monitored_barrier(*this, rank_, size_, number, timeout, wait_all_ranks);
}

Collectives::Work ShmCollectives::send(const at::Tensor& tensor, int to,
                                       int tag, Timeout timeout) {
  auto work = c10::make_intrusive<MailWork>(rank_, c10d::OpType::SEND, tensor);
  mailbox_.send(to, tag, work->bytes(), timeout,
                done_of(work, callback_threads_));
  return work;
}

Collectives::Work ShmCollectives::recv(const at::Tensor& tensor, int from,
                                       int tag, Timeout timeout) {
  auto work = c10::make_intrusive<MailWork>(rank_, c10d::OpType::RECV, tensor);
  mailbox_.receive(from, tag, work->bytes(), timeout,
                   done_of(work, callback_threads_));
  return work;
}

Collectives::Work ShmCollectives::recv_any(const at::Tensor& tensor, int tag,
                                           Timeout timeout) {
  auto work =
      c10::make_intrusive<MailWork>(rank_, c10d::OpType::RECVANYSOURCE, tensor);
  mailbox_.receive_any(tag, work->bytes(), timeout,
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
  std::vector<Message> all(static_cast<size_t>(size_));
  std::vector<Bytes> outputs;
  for (auto& each : all) {
    outputs.push_back(std::as_writable_bytes(std::span(&each, 1)));
  }
  group_.begin({.operation = Operation::kShareMemory}, timeout);
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
    group_.fail(error.what());
    throw;
  } catch (const Error& error) {
    group_.fail(error.what());
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

uint64_t ShmCollectives::place_of(const at::Tensor& tensor) const {
  const auto* data = static_cast<const std::byte*>(tensor.data_ptr());
  for (const auto& [number, left] : shared_) {
    const auto memory = left.lock();
    if (!memory) continue;
    const auto own = memory->segments[static_cast<size_t>(rank_)]->bytes();
    const bool is_inside =
        std::greater_equal<>()(data, own.data()) &&
        std::less_equal<>()(data + tensor.nbytes(), own.data() + own.size());
    if (is_inside && !own.empty()) {
      return number << kOffsetBits | static_cast<uint64_t>(data - own.data());
    }
  }
  return 0;
}

bool ShmCollectives::agree_on(uint64_t place) {
  group_.announce(place);
  group_.sync();
  bool is_same = place != 0;
  for (int rank = 0; rank < size_; ++rank) {
    is_same = is_same && group_.announced_by(rank) == place;
  }
  return is_same;
}

std::vector<Bytes> ShmCollectives::at_place(uint64_t place,
                                            size_t bytes) const {
  const auto memory = shared_.at(place >> kOffsetBits).lock();
  const size_t offset = place & ((uint64_t{1} << kOffsetBits) - 1);
  std::vector<Bytes> spans;
  for (const auto& segment : memory->segments) {
    spans.push_back(segment->bytes().subspan(offset, bytes));
  }
  return spans;
}

}  // namespace lockstep
