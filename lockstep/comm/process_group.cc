#include "lockstep/comm/process_group.h"

#include <algorithm>
#include <utility>

#include "lockstep/base/error.h"
#include "lockstep/comm/device_backends.h"
#include "lockstep/comm/process_group_impl.h"

namespace lockstep {
namespace {

using c10d::OpType;
using Tensors = std::vector<torch::Tensor>;
using Lists = std::vector<Tensors>;

/// Returns a new tensor like `input` for each rank.
Tensors new_outputs(const torch::Tensor& input, int ranks) {
  Tensors outputs(static_cast<size_t>(ranks));
  // The backend refuses an undefined tensor.
  if (!input.defined()) return outputs;
  for (auto& output : outputs) output = torch::empty_like(input);
  return outputs;
}

}  // namespace

ProcessGroup::ProcessGroup() : impl_(std::make_shared<const Impl>()) {}
ProcessGroup::ProcessGroup(std::shared_ptr<const Impl> impl)
    : impl_(std::move(impl)) {}

int ProcessGroup::rank() const { return impl_->rank; }
int ProcessGroup::size() const { return impl_->size; }
int ProcessGroup::local_rank() const { return impl_->local_rank; }
int ProcessGroup::local_size() const { return impl_->local_size; }

std::string ProcessGroup::backend_name() const {
  return impl_->foreign ? impl_->foreign->name()
                        : impl_->direct->getBackendName();
}

bool ProcessGroup::sums_along_tree() const { return !impl_->foreign; }

const c10::intrusive_ptr<c10d::Store>& ProcessGroup::store() const {
  return impl_->store;
}

std::chrono::milliseconds ProcessGroup::timeout() const {
  return impl_->direct ? impl_->direct->timeout() : impl_->timeout;
}

uint64_t ProcessGroup::sequence_number() const {
  return size() == 1 || !impl_->direct
             ? 0
             : impl_->direct->getSequenceNumberForGroup();
}

c10::intrusive_ptr<c10d::Backend> ProcessGroup::backend() const {
  return impl_->foreign ? impl_->foreign->backend()
                        : c10::intrusive_ptr<c10d::Backend>(impl_->direct);
}

template <class CallOptions>
CallOptions ProcessGroup::options_for(bool async_op) const {
  CallOptions options;
  options.asyncOp = async_op;
  options.timeout = timeout();
  return options;
}

// `begin` calls a function of the backend that carries `place`, a tensor of the
// call.
template <class Begin>
c10::intrusive_ptr<c10d::Work> ProcessGroup::call(OpType type,
                                                  const torch::Tensor& place,
                                                  bool async_op,
                                                  const Begin& begin) const {
  if (HostBackend* const carrier = impl_->carrier_of(place)) {
    return begin(*carrier);
  }
  ForeignBackend& foreign = *impl_->foreign;
  if (place.defined()) foreign.note_device(place.device());
  try {
    auto work = begin(*foreign.backend());
    if (async_op) return work;
    // A backend may return no work for a synchronous call.
    if (work) work->wait();
    return nullptr;
  } catch (const c10::Error& error) {
    foreign.throw_error(error, c10d::opTypeToString(type));
  }
}

Work ProcessGroup::all_reduce(const torch::Tensor& tensor, const ReduceOp& op,
                              bool async_op) const {
  auto options = options_for<c10d::AllreduceOptions>(async_op);
  options.reduceOp = op;
  Tensors tensors(1, tensor);
  auto work =
      call(OpType::ALLREDUCE, tensor, async_op, [&](c10d::Backend& backend) {
        return backend.allreduce(tensors, options);
      });
  return Work(std::move(work), std::move(tensors));
}

Work ProcessGroup::reduce(const torch::Tensor& tensor, int root,
                          const ReduceOp& op, bool async_op) const {
  auto options = options_for<c10d::ReduceOptions>(async_op);
  options.reduceOp = op;
  options.rootRank = root;
  Tensors tensors(1, tensor);
  auto work = call(
      OpType::REDUCE, tensor, async_op,
      [&](c10d::Backend& backend) { return backend.reduce(tensors, options); });
  return Work(std::move(work), std::move(tensors));
}

Work ProcessGroup::broadcast(const torch::Tensor& tensor, int root,
                             bool async_op) const {
  auto options = options_for<c10d::BroadcastOptions>(async_op);
  options.rootRank = root;
  Tensors tensors(1, tensor);
  auto work =
      call(OpType::BROADCAST, tensor, async_op, [&](c10d::Backend& backend) {
        return backend.broadcast(tensors, options);
      });
  return Work(std::move(work), std::move(tensors));
}

Work ProcessGroup::all_gather(const torch::Tensor& tensor,
                              bool async_op) const {
  return all_gather(new_outputs(tensor, size()), tensor, async_op);
}

Work ProcessGroup::all_gather(const std::vector<torch::Tensor>& outputs,
                              const torch::Tensor& tensor,
                              bool async_op) const {
  auto options = options_for<c10d::AllgatherOptions>(async_op);
  Lists lists(1, outputs);
  Tensors inputs(1, tensor);
  auto work =
      call(OpType::ALLGATHER, tensor, async_op, [&](c10d::Backend& backend) {
        return backend.allgather(lists, inputs, options);
      });
  return Work(std::move(work), std::move(lists[0]));
}

Work ProcessGroup::all_gather_into_tensor(const torch::Tensor& output,
                                          const torch::Tensor& input,
                                          bool async_op) const {
  auto options = options_for<c10d::AllgatherOptions>(async_op);
  torch::Tensor to = output, from = input;
  auto work = call(OpType::_ALLGATHER_BASE, output, async_op,
                   [&](c10d::Backend& backend) {
                     return backend._allgather_base(to, from, options);
                   });
  return Work(std::move(work), Tensors(1, output));
}

Work ProcessGroup::gather(const torch::Tensor& tensor, int root,
                          bool async_op) const {
  return gather(rank() == root ? new_outputs(tensor, size()) : Tensors(),
                tensor, root, async_op);
}

Work ProcessGroup::gather(const std::vector<torch::Tensor>& outputs,
                          const torch::Tensor& tensor, int root,
                          bool async_op) const {
  auto options = options_for<c10d::GatherOptions>(async_op);
  options.rootRank = root;
  Lists lists;
  if (rank() == root) lists.push_back(outputs);
  Tensors inputs(1, tensor);
  auto work =
      call(OpType::GATHER, tensor, async_op, [&](c10d::Backend& backend) {
        return backend.gather(lists, inputs, options);
      });
  return Work(std::move(work), outputs);
}

Work ProcessGroup::scatter(const torch::Tensor& output,
                           const std::vector<torch::Tensor>& inputs, int root,
                           bool async_op) const {
  auto options = options_for<c10d::ScatterOptions>(async_op);
  options.rootRank = root;
  Lists lists;
  if (rank() == root) lists.push_back(inputs);
  Tensors outputs(1, output);
  auto work =
      call(OpType::SCATTER, output, async_op, [&](c10d::Backend& backend) {
        return backend.scatter(outputs, lists, options);
      });
  return Work(std::move(work), std::move(outputs));
}

Work ProcessGroup::reduce_scatter(const torch::Tensor& output,
                                  const std::vector<torch::Tensor>& inputs,
                                  const ReduceOp& op, bool async_op) const {
  auto options = options_for<c10d::ReduceScatterOptions>(async_op);
  options.reduceOp = op;
  Tensors outputs(1, output);
  Lists lists(1, inputs);
  auto work = call(OpType::REDUCE_SCATTER, output, async_op,
                   [&](c10d::Backend& backend) {
                     return backend.reduce_scatter(outputs, lists, options);
                   });
  return Work(std::move(work), std::move(outputs));
}

Work ProcessGroup::reduce_scatter_tensor(const torch::Tensor& output,
                                         const torch::Tensor& input,
                                         const ReduceOp& op,
                                         bool async_op) const {
  auto options = options_for<c10d::ReduceScatterOptions>(async_op);
  options.reduceOp = op;
  torch::Tensor to = output, from = input;
  auto work = call(OpType::_REDUCE_SCATTER_BASE, output, async_op,
                   [&](c10d::Backend& backend) {
                     return backend._reduce_scatter_base(to, from, options);
                   });
  return Work(std::move(work), Tensors(1, output));
}

Work ProcessGroup::all_to_all(const std::vector<torch::Tensor>& outputs,
                              const std::vector<torch::Tensor>& inputs,
                              bool async_op) const {
  auto options = options_for<c10d::AllToAllOptions>(async_op);
  Tensors to = outputs, from = inputs;
  auto work =
      call(OpType::ALLTOALL, outputs.empty() ? torch::Tensor() : outputs[0],
           async_op, [&](c10d::Backend& backend) {
             return backend.alltoall(to, from, options);
           });
  return Work(std::move(work), outputs);
}

Work ProcessGroup::all_to_all_single(const torch::Tensor& output,
                                     const torch::Tensor& input,
                                     const std::vector<int64_t>& output_splits,
                                     const std::vector<int64_t>& input_splits,
                                     bool async_op) const {
  auto options = options_for<c10d::AllToAllOptions>(async_op);
  torch::Tensor to = output, from = input;
  std::vector<int64_t> to_splits = output_splits, from_splits = input_splits;
  auto work = call(
      OpType::ALLTOALL_BASE, output, async_op, [&](c10d::Backend& backend) {
        return backend.alltoall_base(to, from, to_splits, from_splits, options);
      });
  return Work(std::move(work), Tensors(1, output));
}

Work ProcessGroup::barrier(bool async_op) const {
  auto options = options_for<c10d::BarrierOptions>(async_op);
  return Work(call(OpType::BARRIER, {}, async_op, [&](c10d::Backend& backend) {
    return backend.barrier(options);
  }));
}

void ProcessGroup::send(const torch::Tensor& tensor, int to, int tag) const {
  isend(tensor, to, tag).wait();
}

void ProcessGroup::recv(const torch::Tensor& tensor, int from, int tag) const {
  irecv(tensor, from, tag).wait();
}

int ProcessGroup::recv_any(const torch::Tensor& tensor, int tag) const {
  const Work work = irecv_any(tensor, tag);
  work.wait();
  return work.source_rank();
}

// c10d has no timeout for a message. It uses that of the backend.
template <class Begin>
Work ProcessGroup::message(OpType type, const torch::Tensor& tensor,
                           const Begin& begin) const {
  Tensors tensors(1, tensor);
  auto work =
      call(type, tensor, /*async_op=*/true,
           [&](c10d::Backend& backend) { return begin(backend, tensors); });
  return Work(std::move(work), Tensors(1, tensor));
}

Work ProcessGroup::isend(const torch::Tensor& tensor, int to, int tag) const {
  return message(OpType::SEND, tensor,
                 [&](c10d::Backend& backend, Tensors& tensors) {
                   return backend.send(tensors, to, tag);
                 });
}

Work ProcessGroup::irecv(const torch::Tensor& tensor, int from, int tag) const {
  return message(OpType::RECV, tensor,
                 [&](c10d::Backend& backend, Tensors& tensors) {
                   return backend.recv(tensors, from, tag);
                 });
}

Work ProcessGroup::irecv_any(const torch::Tensor& tensor, int tag) const {
  return message(OpType::RECVANYSOURCE, tensor,
                 [&](c10d::Backend& backend, Tensors& tensors) {
                   return backend.recvAnysource(tensors, tag);
                 });
}

std::vector<std::string> ProcessGroup::all_gather_text(
    const std::string& text) const {
  // Uses a collective instead of the store, because it detects ranks that die.
  if (size() == 1) return {text};
  const auto bytes = static_cast<int64_t>(text.size());
  const auto sizes = all_gather(torch::tensor({bytes}, torch::kInt64)).result();
  int64_t longest = 0;
  for (const auto& size : sizes) {
    longest = std::max(longest, size.item<int64_t>());
  }
  torch::Tensor own_text = torch::zeros({longest}, torch::kUInt8);
  std::copy(text.begin(), text.end(), own_text.data_ptr<uint8_t>());
  const auto all = all_gather(own_text).result();
  std::vector<std::string> texts;
  for (size_t r = 0; r < all.size(); ++r) {
    const auto* begin = all[r].const_data_ptr<uint8_t>();
    texts.emplace_back(begin, begin + sizes[r].item<int64_t>());
  }
  return texts;
}

int64_t ProcessGroup::sent_bytes() const {
  return (impl_->direct ? impl_->direct->sent_bytes() : 0) +
         (impl_->host ? impl_->host->sent_bytes() : 0);
}

bool ProcessGroup::can_share_memory() const {
  return impl_->direct && impl_->direct->can_share_memory();
}

SharedMemory ProcessGroup::shared_memory(size_t bytes) const {
  if (impl_->direct) return impl_->direct->share(bytes);
  throw CommError(
      {.code = ErrorCode::kNoSharedMemory,
       .what = "ranks over " + backend_name() + " share no memory of the host",
       .fix = "use the backend shm on one host"});
}

std::optional<ProcessGroup> ProcessGroup::new_group(
    const std::vector<int>& ranks) const {
  return impl_->new_group(ranks);
}

void ProcessGroup::abort(const std::string& reason) const noexcept {
  if (impl_->direct) impl_->direct->give_up(reason);
  if (impl_->foreign) impl_->foreign->abort();
  if (impl_->host) impl_->host->give_up(reason);
}

void register_backend(const std::string& name, torch::DeviceType device_type,
                      BackendFactory make) {
  add_device_backend({name, device_type, std::move(make)});
}

}  // namespace lockstep
