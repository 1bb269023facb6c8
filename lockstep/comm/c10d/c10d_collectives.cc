#include "lockstep/comm/c10d/c10d_collectives.h"

#include <utility>
#include <vector>

#include "lockstep/base/error.h"

namespace lockstep {

using Lists = std::vector<Collectives::Tensors>;

void C10dCollectives::keep(Work work) {
  // A backend may return no work for a synchronous call.
  if (mode_ == Mode::kSync && work) work->wait();
  last_work_ = std::move(work);
}

void C10dCollectives::all_reduce(const at::Tensor& tensor,
                                 const c10d::ReduceOp& op, Timeout timeout) {
  auto options = options_of<c10d::AllreduceOptions>(timeout);
  options.reduceOp = op;
  Tensors tensors{tensor};
  keep(backend_.allreduce(tensors, options));
}

void C10dCollectives::all_reduce_coalesced(const Tensors& tensors,
                                           const c10d::ReduceOp& op,
                                           Timeout timeout) {
  auto options = options_of<c10d::AllreduceCoalescedOptions>(timeout);
  options.reduceOp = op;
  Tensors list = tensors;
  keep(backend_.allreduce_coalesced(list, options));
}

void C10dCollectives::reduce(const at::Tensor& tensor, int root,
                             const c10d::ReduceOp& op, Timeout timeout) {
  auto options = options_of<c10d::ReduceOptions>(timeout);
  options.reduceOp = op;
  options.rootRank = root;
  Tensors tensors{tensor};
  keep(backend_.reduce(tensors, options));
}

void C10dCollectives::broadcast(const at::Tensor& tensor, int root,
                                Timeout timeout) {
  auto options = options_of<c10d::BroadcastOptions>(timeout);
  options.rootRank = root;
  Tensors tensors{tensor};
  keep(backend_.broadcast(tensors, options));
}

void C10dCollectives::all_gather(const Tensors& outputs,
                                 const at::Tensor& input, Timeout timeout) {
  const auto options = options_of<c10d::AllgatherOptions>(timeout);
  Lists lists{outputs};
  Tensors inputs{input};
  keep(backend_.allgather(lists, inputs, options));
}

void C10dCollectives::gather(const Tensors& outputs, const at::Tensor& input,
                             int root, Timeout timeout) {
  auto options = options_of<c10d::GatherOptions>(timeout);
  options.rootRank = root;
  Lists lists;
  if (backend_.getRank() == root) lists.push_back(outputs);
  Tensors inputs{input};
  keep(backend_.gather(lists, inputs, options));
}

void C10dCollectives::scatter(const at::Tensor& output, const Tensors& inputs,
                              int root, Timeout timeout) {
  auto options = options_of<c10d::ScatterOptions>(timeout);
  options.rootRank = root;
  Tensors outputs{output};
  Lists lists;
  if (backend_.getRank() == root) lists.push_back(inputs);
  keep(backend_.scatter(outputs, lists, options));
}

void C10dCollectives::reduce_scatter(const at::Tensor& output,
                                     const Tensors& inputs,
                                     const c10d::ReduceOp& op,
                                     Timeout timeout) {
  auto options = options_of<c10d::ReduceScatterOptions>(timeout);
  options.reduceOp = op;
  Tensors outputs{output};
  Lists lists{inputs};
  keep(backend_.reduce_scatter(outputs, lists, options));
}

void C10dCollectives::all_to_all(const Tensors& outputs, const Tensors& inputs,
                                 Timeout timeout) {
  const auto options = options_of<c10d::AllToAllOptions>(timeout);
  Tensors output_list = outputs, input_list = inputs;
  keep(backend_.alltoall(output_list, input_list, options));
}

void C10dCollectives::barrier(Timeout timeout) {
  keep(backend_.barrier(options_of<c10d::BarrierOptions>(timeout)));
}

void C10dCollectives::monitored_barrier(Timeout timeout, bool wait_all_ranks) {
  backend_.monitoredBarrier(options_of<c10d::BarrierOptions>(timeout),
                            wait_all_ranks);
}

// c10d has no timeout for a message. It uses that of the backend.
Collectives::Work C10dCollectives::send(const at::Tensor& tensor, int to,
                                        int tag, Timeout) {
  Tensors tensors{tensor};
  return backend_.send(tensors, to, tag);
}

Collectives::Work C10dCollectives::recv(const at::Tensor& tensor, int from,
                                        int tag, Timeout) {
  Tensors tensors{tensor};
  return backend_.recv(tensors, from, tag);
}

Collectives::Work C10dCollectives::recv_any(const at::Tensor& tensor, int tag,
                                            Timeout) {
  Tensors tensors{tensor};
  return backend_.recvAnysource(tensors, tag);
}

SharedMemory C10dCollectives::share(size_t, Timeout) {
  throw CommError(
      {.code = ErrorCode::kNoSharedMemory,
       .what = "ranks over " + name() + " share no memory of the host",
       .fix = "use --backend shm on one host"});
}

}  // namespace lockstep
