#include "lockstep/comm/world.h"

#include <algorithm>
#include <utility>

#include <fmt/format.h>

#include "lockstep/base/error.h"
#include "lockstep/comm/call_checks.h"
#include "lockstep/comm/world_impl.h"

namespace lockstep {

World::World() : impl_(std::make_shared<const Impl>()) {}
World::World(std::shared_ptr<const Impl> impl) : impl_(std::move(impl)) {}

int World::rank() const { return impl_->rank; }
int World::size() const { return impl_->size; }
int World::local_rank() const { return impl_->local_rank; }
int World::local_size() const { return impl_->local_size; }

std::string World::backend_name() const {
  return impl_->backend ? impl_->backend->getBackendName() : "none";
}

const c10::intrusive_ptr<c10d::Backend>& World::backend() const {
  return impl_->backend;
}
const c10::intrusive_ptr<c10d::Store>& World::store() const {
  return impl_->store;
}
std::chrono::milliseconds World::timeout() const { return impl_->timeout; }

void World::all_reduce(torch::Tensor& tensor, const ReduceOp& op) const {
  if (!impl_->backend) return;
  std::vector<at::Tensor> tensors{tensor};
  c10d::AllreduceOptions options;
  options.reduceOp = op;
  options.asyncOp = false;
  impl_->backend->allreduce(tensors, options)->wait();
}

void World::reduce(torch::Tensor& tensor, int root, const ReduceOp& op) const {
  if (!impl_->backend) return CallChecks("reduce", 0, 1).root(root);
  std::vector<at::Tensor> tensors{tensor};
  c10d::ReduceOptions options;
  options.reduceOp = op;
  options.rootRank = root;
  options.asyncOp = false;
  impl_->backend->reduce(tensors, options)->wait();
}

void World::broadcast(torch::Tensor& tensor, int root) const {
  if (!impl_->backend) return CallChecks("broadcast", 0, 1).root(root);
  std::vector<at::Tensor> tensors{tensor};
  c10d::BroadcastOptions options;
  options.rootRank = root;
  options.asyncOp = false;
  impl_->backend->broadcast(tensors, options)->wait();
}

std::vector<torch::Tensor> World::all_gather(
    const torch::Tensor& tensor) const {
  std::vector<std::vector<at::Tensor>> outputs(1);
  for (int r = 0; r < size(); ++r) {
    outputs[0].push_back(torch::empty_like(tensor));
  }
  if (!impl_->backend) {
    outputs[0][0].copy_(tensor);
    return outputs[0];
  }
  std::vector<at::Tensor> inputs{tensor};
  c10d::AllgatherOptions options;
  options.asyncOp = false;
  impl_->backend->allgather(outputs, inputs, options)->wait();
  return outputs[0];
}

std::vector<torch::Tensor> World::gather(const torch::Tensor& tensor,
                                         int root) const {
  if (!impl_->backend) {
    CallChecks("gather", 0, 1).root(root);
    return {tensor.clone()};
  }
  std::vector<std::vector<at::Tensor>> outputs;
  if (rank() == root) {
    outputs.emplace_back();
    for (int r = 0; r < size(); ++r) {
      outputs[0].push_back(torch::empty_like(tensor));
    }
  }
  std::vector<at::Tensor> inputs{tensor};
  c10d::GatherOptions options;
  options.rootRank = root;
  options.asyncOp = false;
  impl_->backend->gather(outputs, inputs, options)->wait();
  return rank() == root ? outputs[0] : std::vector<torch::Tensor>();
}

void World::scatter(torch::Tensor& tensor,
                    const std::vector<torch::Tensor>& parts, int root) const {
  if (!impl_->backend) {
    const CallChecks check("scatter", 0, 1);
    check.root(root);
    check.parts(parts, tensor);
    tensor.copy_(parts[0]);
    return;
  }
  std::vector<at::Tensor> outputs{tensor};
  std::vector<std::vector<at::Tensor>> inputs;
  if (rank() == root) inputs.push_back(parts);
  c10d::ScatterOptions options;
  options.rootRank = root;
  options.asyncOp = false;
  impl_->backend->scatter(outputs, inputs, options)->wait();
}

void World::reduce_scatter(torch::Tensor& tensor,
                           const std::vector<torch::Tensor>& parts,
                           const ReduceOp& op) const {
  if (!impl_->backend) {
    CallChecks("reduce_scatter", 0, 1).parts(parts, tensor);
    tensor.copy_(parts[0]);
    return;
  }
  std::vector<at::Tensor> outputs{tensor};
  std::vector<std::vector<at::Tensor>> inputs{parts};
  c10d::ReduceScatterOptions options;
  options.reduceOp = op;
  options.asyncOp = false;
  impl_->backend->reduce_scatter(outputs, inputs, options)->wait();
}

void World::all_to_all(std::vector<torch::Tensor>& outputs,
                       const std::vector<torch::Tensor>& inputs) const {
  if (!impl_->backend) {
    const CallChecks check("all_to_all", 0, 1);
    check.same_count("an output for each rank", 1, outputs.size());
    check.parts(inputs, outputs[0]);
    outputs[0].copy_(inputs[0]);
    return;
  }
  std::vector<at::Tensor> parts = inputs;
  c10d::AllToAllOptions options;
  options.asyncOp = false;
  impl_->backend->alltoall(outputs, parts, options)->wait();
}

void World::barrier() const {
  if (!impl_->backend) return;
  c10d::BarrierOptions options;
  options.asyncOp = false;
  impl_->backend->barrier(options)->wait();
}

void World::send(const torch::Tensor& tensor, int to, int tag) const {
  std::vector<at::Tensor> tensors{tensor};
  impl_->others().send(tensors, to, tag)->wait();
}

void World::recv(torch::Tensor& tensor, int from, int tag) const {
  std::vector<at::Tensor> tensors{tensor};
  impl_->others().recv(tensors, from, tag)->wait();
}

int World::recv_any(torch::Tensor& tensor, int tag) const {
  std::vector<at::Tensor> tensors{tensor};
  const auto work = impl_->others().recvAnysource(tensors, tag);
  work->wait();
  return work->sourceRank();
}

std::vector<std::string> World::all_gather_text(const std::string& text) const {
  // Through the backend where it is there: it notices ranks that die.
  if (impl_->queued == nullptr) return impl_->all_gather_text(text);
  const auto bytes = static_cast<int64_t>(text.size());
  const auto sizes = all_gather(torch::tensor({bytes}, torch::kInt64));
  int64_t longest = 0;
  for (const auto& size : sizes) {
    longest = std::max(longest, size.item<int64_t>());
  }
  torch::Tensor own = torch::zeros({longest}, torch::kUInt8);
  std::copy(text.begin(), text.end(), own.data_ptr<uint8_t>());
  const auto all = all_gather(own);
  std::vector<std::string> texts;
  for (size_t r = 0; r < all.size(); ++r) {
    const auto* begin = all[r].const_data_ptr<uint8_t>();
    texts.emplace_back(begin, begin + sizes[r].item<int64_t>());
  }
  return texts;
}

bool World::can_share_memory() const {
  return size() == 1 || backend_name() == "shm";
}

SharedMemory World::shared_memory(size_t bytes) const {
  if (!impl_->backend) {
    return SharedMemory({shm::Segment::create(bytes)}, {bytes});
  }
  if (impl_->queued != nullptr) return impl_->queued->share(bytes);
  throw CommError({.code = ErrorCode::kNoSharedMemory,
                   .what = "ranks over nccl share no host memory",
                   .fix = "use --backend shm on one host"});
}

std::optional<World> World::new_group(const std::vector<int>& ranks) const {
  return impl_->new_group(ranks);
}

void World::fail(const std::string& reason) const noexcept {
  if (impl_->queued != nullptr) impl_->queued->fail(reason);
}

}  // namespace lockstep
