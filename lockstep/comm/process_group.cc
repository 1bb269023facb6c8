#include "lockstep/comm/process_group.h"

#include <algorithm>
#include <utility>

#include "lockstep/comm/process_group_impl.h"
#include "lockstep/comm/transport/device_backends.h"

namespace lockstep {
namespace {

Work submit(Transport& transport, CollectiveCall call, bool async_op) {
  if (!async_op) {
    transport.run(call, transport.timeout());
    return Work({}, std::move(call.outputs));
  }
  std::vector<torch::Tensor> outputs = call.outputs;
  return Work(transport.begin(std::move(call), transport.timeout()),
              std::move(outputs));
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
  return impl_->transport->name();
}

bool ProcessGroup::sums_along_tree() const {
  return impl_->transport->sums_along_tree();
}

const c10::intrusive_ptr<c10d::Store>& ProcessGroup::store() const {
  return impl_->store;
}

std::chrono::milliseconds ProcessGroup::timeout() const {
  return impl_->transport->timeout();
}

uint64_t ProcessGroup::sequence_number() const {
  return impl_->transport->sequence_number();
}

const std::shared_ptr<Transport>& ProcessGroup::transport() const {
  return impl_->transport;
}

Work ProcessGroup::all_reduce(const torch::Tensor& tensor, const ReduceOp& op,
                              bool async_op) const {
  Transport& transport = impl_->transport_of(tensor);
  return submit(transport, transport.calls().all_reduce(tensor, op), async_op);
}

Work ProcessGroup::reduce(const torch::Tensor& tensor, int root,
                          const ReduceOp& op, bool async_op) const {
  Transport& transport = impl_->transport_of(tensor);
  return submit(transport, transport.calls().reduce(tensor, root, op),
                async_op);
}

Work ProcessGroup::broadcast(const torch::Tensor& tensor, int root,
                             bool async_op) const {
  Transport& transport = impl_->transport_of(tensor);
  return submit(transport, transport.calls().broadcast(tensor, root), async_op);
}

Work ProcessGroup::all_gather(const torch::Tensor& tensor,
                              bool async_op) const {
  Transport& transport = impl_->transport_of(tensor);
  return submit(transport, transport.calls().all_gather(tensor), async_op);
}

Work ProcessGroup::all_gather(const std::vector<torch::Tensor>& outputs,
                              const torch::Tensor& tensor,
                              bool async_op) const {
  Transport& transport = impl_->transport_of(tensor);
  return submit(transport, transport.calls().all_gather(outputs, tensor),
                async_op);
}

Work ProcessGroup::all_gather_into_tensor(const torch::Tensor& output,
                                          const torch::Tensor& input,
                                          bool async_op) const {
  Transport& transport = impl_->transport_of(output);
  return submit(transport,
                transport.calls().all_gather_into_tensor(output, input),
                async_op);
}

Work ProcessGroup::gather(const torch::Tensor& tensor, int root,
                          bool async_op) const {
  Transport& transport = impl_->transport_of(tensor);
  return submit(transport, transport.calls().gather(tensor, root), async_op);
}

Work ProcessGroup::gather(const std::vector<torch::Tensor>& outputs,
                          const torch::Tensor& tensor, int root,
                          bool async_op) const {
  Transport& transport = impl_->transport_of(tensor);
  return submit(transport, transport.calls().gather(outputs, tensor, root),
                async_op);
}

Work ProcessGroup::scatter(const torch::Tensor& output,
                           const std::vector<torch::Tensor>& inputs, int root,
                           bool async_op) const {
  Transport& transport = impl_->transport_of(output);
  return submit(transport, transport.calls().scatter(output, inputs, root),
                async_op);
}

Work ProcessGroup::reduce_scatter(const torch::Tensor& output,
                                  const std::vector<torch::Tensor>& inputs,
                                  const ReduceOp& op, bool async_op) const {
  Transport& transport = impl_->transport_of(output);
  return submit(transport, transport.calls().reduce_scatter(output, inputs, op),
                async_op);
}

Work ProcessGroup::reduce_scatter_tensor(const torch::Tensor& output,
                                         const torch::Tensor& input,
                                         const ReduceOp& op,
                                         bool async_op) const {
  Transport& transport = impl_->transport_of(output);
  return submit(transport,
                transport.calls().reduce_scatter_tensor(output, input, op),
                async_op);
}

Work ProcessGroup::all_to_all(const std::vector<torch::Tensor>& outputs,
                              const std::vector<torch::Tensor>& inputs,
                              bool async_op) const {
  Transport& transport =
      outputs.empty() ? *impl_->transport : impl_->transport_of(outputs[0]);
  return submit(transport, transport.calls().all_to_all(outputs, inputs),
                async_op);
}

Work ProcessGroup::all_to_all_single(const torch::Tensor& output,
                                     const torch::Tensor& input,
                                     const std::vector<int64_t>& output_splits,
                                     const std::vector<int64_t>& input_splits,
                                     bool async_op) const {
  Transport& transport = impl_->transport_of(output);
  return submit(transport,
                transport.calls().all_to_all_single(
                    output, input, output_splits, input_splits),
                async_op);
}

Work ProcessGroup::barrier(bool async_op) const {
  Transport& transport = *impl_->transport;
  return submit(transport, transport.calls().barrier(), async_op);
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

Work ProcessGroup::isend(const torch::Tensor& tensor, int to, int tag) const {
  return Work(impl_->transport_of(tensor).send(tensor, to, tag), {tensor});
}

Work ProcessGroup::irecv(const torch::Tensor& tensor, int from, int tag) const {
  return Work(impl_->transport_of(tensor).recv(tensor, from, tag), {tensor});
}

Work ProcessGroup::irecv_any(const torch::Tensor& tensor, int tag) const {
  return Work(impl_->transport_of(tensor).recv_any(tensor, tag), {tensor});
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
  const auto& host = impl_->host_transport;
  return impl_->transport->sent_bytes() + (host ? host->sent_bytes() : 0);
}

bool ProcessGroup::can_share_memory() const {
  return impl_->transport->can_share_memory();
}

SharedMemory ProcessGroup::shared_memory(size_t bytes) const {
  return impl_->transport->share(bytes);
}

std::optional<ProcessGroup> ProcessGroup::new_group(
    const std::vector<int>& ranks) const {
  return impl_->new_group(ranks);
}

void ProcessGroup::abort(const std::string& reason) const noexcept {
  impl_->transport->abort(reason);
  if (impl_->host_transport) impl_->host_transport->abort(reason);
}

void register_backend(const std::string& name, torch::DeviceType device_type,
                      BackendFactory make) {
  add_device_backend({name, device_type, std::move(make)});
}

}  // namespace lockstep
