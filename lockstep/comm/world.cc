#include "lockstep/comm/world.h"

#include <algorithm>
#include <utility>

#include "lockstep/comm/world_impl.h"

namespace lockstep {

World::World() : impl_(std::make_shared<const Impl>()) {}
World::World(std::shared_ptr<const Impl> impl) : impl_(std::move(impl)) {}

int World::rank() const { return impl_->rank; }
int World::size() const { return impl_->size; }
int World::local_rank() const { return impl_->local_rank; }
int World::local_size() const { return impl_->local_size; }

std::string World::backend_name() const {
  return impl_->main.communicator->name();
}

const c10::intrusive_ptr<c10d::Backend>& World::backend() const {
  return impl_->backend;
}
const c10::intrusive_ptr<c10d::Store>& World::store() const {
  return impl_->store;
}
std::chrono::milliseconds World::timeout() const { return impl_->timeout; }

void World::all_reduce(torch::Tensor& tensor, const ReduceOp& op) const {
  const auto& line = impl_->line_of(tensor);
  line.run(line.calls.all_reduce(tensor, op));
}

void World::reduce(torch::Tensor& tensor, int root, const ReduceOp& op) const {
  const auto& line = impl_->line_of(tensor);
  line.run(line.calls.reduce(tensor, root, op));
}

void World::broadcast(torch::Tensor& tensor, int root) const {
  const auto& line = impl_->line_of(tensor);
  line.run(line.calls.broadcast(tensor, root));
}

std::vector<torch::Tensor> World::all_gather(
    const torch::Tensor& tensor) const {
  const auto& line = impl_->line_of(tensor);
  const CollectiveCall call = line.calls.all_gather(tensor);
  line.run(call);
  return call.outputs;
}

void World::all_gather(std::vector<torch::Tensor>& outputs,
                       const torch::Tensor& tensor) const {
  const auto& line = impl_->line_of(outputs);
  line.run(line.calls.all_gather(outputs, tensor));
}

std::vector<torch::Tensor> World::gather(const torch::Tensor& tensor,
                                         int root) const {
  const auto& line = impl_->line_of(tensor);
  const CollectiveCall call = line.calls.gather(tensor, root);
  line.run(call);
  return call.outputs;
}

void World::scatter(torch::Tensor& tensor,
                    const std::vector<torch::Tensor>& parts, int root) const {
  const auto& line = impl_->line_of(tensor);
  line.run(line.calls.scatter(tensor, parts, root));
}

void World::reduce_scatter(torch::Tensor& tensor,
                           const std::vector<torch::Tensor>& parts,
                           const ReduceOp& op) const {
  const auto& line = impl_->line_of(tensor);
  line.run(line.calls.reduce_scatter(tensor, parts, op));
}

void World::all_to_all(std::vector<torch::Tensor>& outputs,
                       const std::vector<torch::Tensor>& inputs) const {
  const auto& line = impl_->line_of(outputs);
  line.run(line.calls.all_to_all(outputs, inputs));
}

void World::barrier() const {
  const auto& line = impl_->main;
  line.run(line.calls.barrier());
}

Work World::all_reduce_async(const torch::Tensor& tensor,
                             const ReduceOp& op) const {
  const auto& line = impl_->line_of(tensor);
  return line.begin(line.calls.all_reduce(tensor, op));
}

Work World::reduce_async(const torch::Tensor& tensor, int root,
                         const ReduceOp& op) const {
  const auto& line = impl_->line_of(tensor);
  return line.begin(line.calls.reduce(tensor, root, op));
}

Work World::broadcast_async(const torch::Tensor& tensor, int root) const {
  const auto& line = impl_->line_of(tensor);
  return line.begin(line.calls.broadcast(tensor, root));
}

Work World::all_gather_async(const torch::Tensor& tensor) const {
  const auto& line = impl_->line_of(tensor);
  return line.begin(line.calls.all_gather(tensor));
}

Work World::gather_async(const torch::Tensor& tensor, int root) const {
  const auto& line = impl_->line_of(tensor);
  return line.begin(line.calls.gather(tensor, root));
}

Work World::scatter_async(const torch::Tensor& tensor,
                          const std::vector<torch::Tensor>& parts,
                          int root) const {
  const auto& line = impl_->line_of(tensor);
  return line.begin(line.calls.scatter(tensor, parts, root));
}

Work World::reduce_scatter_async(const torch::Tensor& tensor,
                                 const std::vector<torch::Tensor>& parts,
                                 const ReduceOp& op) const {
  const auto& line = impl_->line_of(tensor);
  return line.begin(line.calls.reduce_scatter(tensor, parts, op));
}

Work World::all_to_all_async(const std::vector<torch::Tensor>& outputs,
                             const std::vector<torch::Tensor>& inputs) const {
  const auto& line = impl_->line_of(outputs);
  return line.begin(line.calls.all_to_all(outputs, inputs));
}

Work World::barrier_async() const {
  const auto& line = impl_->main;
  return line.begin(line.calls.barrier());
}

void World::coalesce(const std::function<void(CoalescedCalls&)>& add) const {
  CoalescedCalls group(impl_->main.calls);
  add(group);
  if (!group.empty()) impl_->main.run(std::move(group).join());
}

Work World::coalesce_async(
    const std::function<void(CoalescedCalls&)>& add) const {
  CoalescedCalls group(impl_->main.calls);
  add(group);
  return group.empty() ? Work() : impl_->main.begin(std::move(group).join());
}

void World::send(const torch::Tensor& tensor, int to, int tag) const {
  isend(tensor, to, tag).wait();
}

void World::recv(torch::Tensor& tensor, int from, int tag) const {
  irecv(tensor, from, tag).wait();
}

int World::recv_any(torch::Tensor& tensor, int tag) const {
  const Work work = irecv_any(tensor, tag);
  work.wait();
  return work.source_rank();
}

Work World::isend(const torch::Tensor& tensor, int to, int tag) const {
  return Work(impl_->line_of(tensor).communicator->send(tensor, to, tag),
              {tensor});
}

Work World::irecv(const torch::Tensor& tensor, int from, int tag) const {
  return Work(impl_->line_of(tensor).communicator->recv(tensor, from, tag),
              {tensor});
}

Work World::irecv_any(const torch::Tensor& tensor, int tag) const {
  return Work(impl_->line_of(tensor).communicator->recv_any(tensor, tag),
              {tensor});
}

std::vector<std::string> World::all_gather_text(const std::string& text) const {
  // Uses a collective instead of the store, because it detects ranks that die.
  if (size() == 1) return {text};
  const auto bytes = static_cast<int64_t>(text.size());
  const auto sizes = all_gather(torch::tensor({bytes}, torch::kInt64));
  int64_t longest = 0;
  for (const auto& size : sizes) {
    longest = std::max(longest, size.item<int64_t>());
  }
  torch::Tensor own_text = torch::zeros({longest}, torch::kUInt8);
  std::copy(text.begin(), text.end(), own_text.data_ptr<uint8_t>());
  const auto all = all_gather(own_text);
  std::vector<std::string> texts;
  for (size_t r = 0; r < all.size(); ++r) {
    const auto* begin = all[r].const_data_ptr<uint8_t>();
    texts.emplace_back(begin, begin + sizes[r].item<int64_t>());
  }
  return texts;
}

int64_t World::sent_bytes() const {
  const auto bytes_of = [](const Impl::Line& line) {
    return line.communicator->sent_bytes();
  };
  return bytes_of(impl_->main) + (impl_->host ? bytes_of(*impl_->host) : 0);
}

bool World::can_share_memory() const {
  return size() == 1 || backend_name() == "shm";
}

SharedMemory World::shared_memory(size_t bytes) const {
  return impl_->main.communicator->share(bytes);
}

std::optional<World> World::new_group(const std::vector<int>& ranks) const {
  return impl_->new_group(ranks);
}

void World::abort(const std::string& reason) const noexcept {
  impl_->main.communicator->abort(reason);
  if (impl_->host) impl_->host->communicator->abort(reason);
}

}  // namespace lockstep
