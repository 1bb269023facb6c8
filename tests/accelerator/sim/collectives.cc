#include "tests/accelerator/sim/collectives.h"

#include <algorithm>
#include <cstring>
#include <functional>
#include <map>
#include <memory>
#include <mutex>
#include <optional>
#include <string>
#include <unistd.h>
#include <utility>
#include <vector>

#include <ATen/core/LegacyTypeDispatch.h>
#include <ATen/core/ivalue.h>
#include <ATen/ops/from_blob.h>
#include <c10/core/DeviceGuard.h>
#include <c10/core/Event.h>
#include <c10/core/StreamGuard.h>
#include <fmt/format.h>
#include <torch/csrc/distributed/c10d/Backend.hpp>
#include <torch/csrc/distributed/c10d/PrefixStore.hpp>
#include <torch/types.h>
#include <torch/utils.h>

#include "lockstep/base/error.h"
#include "lockstep/comm/process_group_impl.h"
#include "lockstep/comm/tree_reduce.h"
#include "lockstep/store/socket_address.h"
#include "tests/accelerator/sim/accelerator.h"
#include "tests/accelerator/sim/memory.h"
#include "tests/accelerator/sim/stream.h"

namespace lockstep::sim {
namespace {

using at::Tensor;
using c10d::OpType;
using Tensors = std::vector<Tensor>;
using Lists = std::vector<Tensors>;
using WorkPtr = c10::intrusive_ptr<c10d::Work>;

constexpr int64_t kDescriptionBytes = 256;

/// Returns `tensor` as a kernel sees it, which does not keep the memory.
Tensor view_of_kernel(const Tensor& tensor) {
  const auto options = tensor.options().device(at::kCPU);
  if (tensor.numel() == 0) return at::empty(tensor.sizes(), options);
  return at::from_blob(DeviceMemory::get().for_kernel(tensor.data_ptr()),
                       tensor.sizes(), options);
}

Tensors views_of_kernel(const Tensors& tensors) {
  Tensors views;
  for (const Tensor& tensor : tensors) views.push_back(view_of_kernel(tensor));
  return views;
}

/// Returns equal parts of `tensor`, one for each rank.
Tensors cut(const Tensor& tensor, int ranks) {
  return tensor.view({-1}).tensor_split(ranks);
}

Tensor combine(const Tensor& a, const Tensor& b, c10d::ReduceOp::RedOpType op) {
  switch (op) {
    case c10d::ReduceOp::PRODUCT:
      return a * b;
    case c10d::ReduceOp::MIN:
      return torch::minimum(a, b);
    case c10d::ReduceOp::MAX:
      return torch::maximum(a, b);
    case c10d::ReduceOp::BAND:
      return a & b;
    case c10d::ReduceOp::BOR:
      return a | b;
    case c10d::ReduceOp::BXOR:
      return a ^ b;
    default:
      return a + b;
  }
}

/// Combines from the last rank to the first.
Tensor reduced(const Tensors& per_rank, const c10d::ReduceOp& op) {
  Tensor result = per_rank.back();
  for (auto it = per_rank.rbegin() + 1; it != per_rank.rend(); ++it) {
    result = combine(result, *it, op.op_);
  }
  if (op.op_ != c10d::ReduceOp::AVG) return result;
  return result / static_cast<int64_t>(per_rank.size());
}

/// Returns what this rank contributes to a reduction.
Tensor contribution(const Tensor& tensor, const c10d::ReduceOp& op) {
  return op.op_ == c10d::ReduceOp::PREMUL_SUM ? scaled(tensor, op) : tensor;
}

std::string text_without_backtrace(const std::exception& error) {
  const auto* torch_error = dynamic_cast<const c10::Error*>(&error);
  return torch_error != nullptr ? torch_error->what_without_backtrace()
                                : error.what();
}

/// The ranks of a communicator, for the kernels of one of them.
class Communicator {
 public:
  Communicator(const c10::intrusive_ptr<c10d::Store>& store, int rank, int size,
               std::chrono::milliseconds timeout)
      : host_(std::make_shared<const ProcessGroup::Impl>(
            c10::make_intrusive<c10d::PrefixStore>("simccl", store), rank, size,
            store::loopback_host(),
            ProcessGroupOptions().backend("shm").timeout(timeout))) {}

  const ProcessGroup& host() const { return host_; }

  /// Throws if another call failed, or abort() was called.
  void check_usable(OpType type) const {
    const std::lock_guard lock(mutex_);
    if (failure_.empty()) return;
    C10_THROW_ERROR(DistBackendError,
                    fmt::format("simccl: {} on a communicator that failed: {}",
                                c10d::opTypeToString(type), failure_));
  }

  /// Throws if the ranks make different calls.
  void compare(const std::string& description) const {
    Tensor message = torch::zeros({kDescriptionBytes}, torch::kUInt8);
    std::memcpy(message.data_ptr(), description.data(),
                std::min<size_t>(description.size(), kDescriptionBytes - 1));
    const auto all = host_.all_gather(message).result();
    for (size_t rank = 1; rank < all.size(); ++rank) {
      TORCH_CHECK(torch::equal(all[rank], all[0]), "the ranks differ: rank 0 ",
                  "calls ", static_cast<const char*>(all[0].data_ptr()),
                  ", and rank ", rank, " ",
                  static_cast<const char*>(all[rank].data_ptr()));
    }
  }

  void fail(const std::string& reason) noexcept {
    {
      const std::lock_guard lock(mutex_);
      if (failure_.empty()) failure_ = reason;
    }
    host_.abort(reason);
  }

 private:
  ProcessGroup host_;
  mutable std::mutex mutex_;
  std::string failure_;
};

/// Result of a kernel.
struct Outcome {
  std::mutex mutex;
  std::exception_ptr error;
  Tensors held;  // until wait(), or the end of the kernel

  std::exception_ptr get_error() {
    const std::lock_guard lock(mutex);
    return error;
  }
  void release() {
    Tensors released;
    const std::lock_guard lock(mutex);
    released.swap(held);
  }
};

class StreamWork final : public c10d::Work {
 public:
  StreamWork(int rank, OpType type, c10::Stream stream, Tensors outputs,
             std::shared_ptr<Outcome> outcome)
      : Work(rank, type),
        stream_(stream),
        outputs_(std::move(outputs)),
        outcome_(std::move(outcome)),
        end_(std::make_shared<c10::Event>(kSim)),
        future_(c10::make_intrusive<c10::ivalue::Future>(
            c10::ListType::create(c10::TensorType::get()),
            std::vector<c10::Device>{stream.device()})) {
    end_->record(stream_);
    const c10::StreamGuard guard(stream_);
    future_->markCompleted(c10::IValue(outputs_));
  }

  const std::shared_ptr<c10::Event>& end() const { return end_; }

  bool isCompleted() override {
    return outcome_->get_error() != nullptr || end_->query();
  }
  bool isSuccess() const override { return outcome_->get_error() == nullptr; }
  std::exception_ptr exception() const override {
    return outcome_->get_error();
  }
  Tensors result() override { return outputs_; }
  c10::intrusive_ptr<c10::ivalue::Future> getFuture() override {
    return future_;
  }
  void synchronize() override {
    end_->block(current_stream(stream_.device_index()));
    outcome_->release();
  }
  bool wait(std::chrono::milliseconds timeout) override {
    synchronize();
    if (timeout != kNoTimeout) {
      const auto deadline = std::chrono::steady_clock::now() + timeout;
      while (!isCompleted()) {
        TORCH_CHECK_WITH(DistBackendError,
                         std::chrono::steady_clock::now() < deadline,
                         "simccl:", " a wait for ",
                         c10d::opTypeToString(opType_), " timed out");
        std::this_thread::sleep_for(std::chrono::milliseconds(1));
      }
    } else if (opType_ == OpType::BARRIER) {
      end_->synchronize();
    }
    if (const auto error = outcome_->get_error()) std::rethrow_exception(error);
    return true;
  }

 private:
  const c10::Stream stream_;
  const Tensors outputs_;
  const std::shared_ptr<Outcome> outcome_;
  const std::shared_ptr<c10::Event> end_;
  const c10::intrusive_ptr<c10::ivalue::Future> future_;
};

class Simccl final : public c10d::Backend {
 public:
  /// Moves the data of a call, in a kernel.
  using Move = std::function<void(const ProcessGroup& host)>;

  Simccl(const c10::intrusive_ptr<c10d::Store>& store, int rank, int size,
         std::chrono::milliseconds timeout)
      : Backend(rank, size),
        communicator_(
            std::make_shared<Communicator>(store, rank, size, timeout)) {
    keep(communicator_);
  }
  /// As ProcessGroupNCCL, ends what still runs.
  ~Simccl() override {
    if (last_end_ != nullptr && !last_end_->query()) {
      communicator_->fail("it was destroyed");
    }
  }

  const std::string getBackendName() const override { return "simccl"; }
  void setSequenceNumberForGroup() override {}
  uint64_t getSequenceNumberForGroup() override { return calls_; }
  void abort() override { communicator_->fail("it was aborted"); }

  WorkPtr allreduce(Tensors& tensors,
                    const c10d::AllreduceOptions& options) override {
    return all_reduce(OpType::ALLREDUCE, tensors, options.reduceOp,
                      options.asyncOp);
  }

  WorkPtr reduce(Tensors& tensors,
                 const c10d::ReduceOptions& options) override {
    const auto root = static_cast<int>(options.rootRank);
    return launch({.type = OpType::REDUCE,
                   .is_async = options.asyncOp,
                   .root = root,
                   .op = options.reduceOp,
                   .inputs = tensors,
                   .outputs = tensors},
                  [root, tensor = view_of_kernel(tensors.at(0)),
                   op = options.reduceOp](const ProcessGroup& host) {
                    const auto all =
                        host.gather(contribution(tensor, op), root).result();
                    if (host.rank() == root) tensor.copy_(reduced(all, op));
                  });
  }

  WorkPtr broadcast(Tensors& tensors,
                    const c10d::BroadcastOptions& options) override {
    const auto root = static_cast<int>(options.rootRank);
    return launch(
        {.type = OpType::BROADCAST,
         .is_async = options.asyncOp,
         .root = root,
         .inputs = tensors,
         .outputs = tensors},
        [root, tensor = view_of_kernel(tensors.at(0))](
            const ProcessGroup& host) { host.broadcast(tensor, root); });
  }

  WorkPtr allgather(Lists& outputs, Tensors& inputs,
                    const c10d::AllgatherOptions& options) override {
    return launch({.type = OpType::ALLGATHER,
                   .is_async = options.asyncOp,
                   .inputs = inputs,
                   .outputs = outputs.at(0)},
                  [to = views_of_kernel(outputs.at(0)),
                   from = view_of_kernel(inputs.at(0))](
                      const ProcessGroup& host) { host.all_gather(to, from); });
  }

  WorkPtr _allgather_base(Tensor& output, Tensor& input,
                          const c10d::AllgatherOptions& options) override {
    return launch({.type = OpType::_ALLGATHER_BASE,
                   .is_async = options.asyncOp,
                   .inputs = {input},
                   .outputs = {output}},
                  [to = view_of_kernel(output),
                   from = view_of_kernel(input)](const ProcessGroup& host) {
                    host.all_gather_into_tensor(to, from);
                  });
  }

  WorkPtr gather(Lists& outputs, Tensors& inputs,
                 const c10d::GatherOptions& options) override {
    const Tensors root_tensors = outputs.empty() ? Tensors() : outputs[0];
    const auto root = static_cast<int>(options.rootRank);
    return launch(
        {.type = OpType::GATHER,
         .is_async = options.asyncOp,
         .root = root,
         .inputs = inputs,
         .outputs = root_tensors},
        [root, to = views_of_kernel(root_tensors),
         from = view_of_kernel(inputs.at(0))](const ProcessGroup& host) {
          host.gather(to, from, root);
        });
  }

  WorkPtr scatter(Tensors& outputs, Lists& inputs,
                  const c10d::ScatterOptions& options) override {
    const Tensors root_tensors = inputs.empty() ? Tensors() : inputs[0];
    const auto root = static_cast<int>(options.rootRank);
    // The size that all ranks know is that of the outputs.
    return launch(
        {.type = OpType::SCATTER,
         .is_async = options.asyncOp,
         .root = root,
         .inputs = outputs,
         .outputs = outputs,
         .others = root_tensors},
        [root, to = view_of_kernel(outputs.at(0)),
         from = views_of_kernel(root_tensors)](const ProcessGroup& host) {
          host.scatter(to, from, root);
        });
  }

  WorkPtr reduce_scatter(Tensors& outputs, Lists& inputs,
                         const c10d::ReduceScatterOptions& options) override {
    return reduce_scatter(OpType::REDUCE_SCATTER, outputs.at(0), inputs.at(0),
                          views_of_kernel(inputs.at(0)), options);
  }
  WorkPtr _reduce_scatter_base(
      Tensor& output, Tensor& input,
      const c10d::ReduceScatterOptions& options) override {
    return reduce_scatter(OpType::_REDUCE_SCATTER_BASE, output, {input},
                          cut(view_of_kernel(input), getSize()), options);
  }

  WorkPtr alltoall(Tensors& outputs, Tensors& inputs,
                   const c10d::AllToAllOptions& options) override {
    return launch(
        {.type = OpType::ALLTOALL,
         .is_async = options.asyncOp,
         .has_own_sizes = true,
         .inputs = inputs,
         .outputs = outputs},
        [to = views_of_kernel(outputs), from = views_of_kernel(inputs)](
            const ProcessGroup& host) { host.all_to_all(to, from); });
  }

  WorkPtr alltoall_base(Tensor& output, Tensor& input,
                        std::vector<int64_t>& output_splits,
                        std::vector<int64_t>& input_splits,
                        const c10d::AllToAllOptions& options) override {
    const auto parts = [&](const Tensor& tensor,
                           const std::vector<int64_t>& splits) {
      return splits.empty() ? tensor.tensor_split(getSize(), 0)
                            : tensor.split_with_sizes(splits, 0);
    };
    return launch({.type = OpType::ALLTOALL_BASE,
                   .is_async = options.asyncOp,
                   .has_own_sizes = true,
                   .inputs = {input},
                   .outputs = {output}},
                  [to = parts(view_of_kernel(output), output_splits),
                   from = parts(view_of_kernel(input), input_splits)](
                      const ProcessGroup& host) { host.all_to_all(to, from); });
  }

  WorkPtr barrier(const c10d::BarrierOptions& options) override {
    return launch({.type = OpType::BARRIER, .is_async = options.asyncOp},
                  [](const ProcessGroup& host) { host.barrier(); });
  }

  WorkPtr send(Tensors& tensors, int to, int tag) override {
    return message(
        OpType::SEND, to, tensors,
        [to, tag, tensor = view_of_kernel(tensors.at(0))](
            const ProcessGroup& host) { host.send(tensor, to, tag); });
  }
  WorkPtr recv(Tensors& tensors, int from, int tag) override {
    return message(
        OpType::RECV, from, tensors,
        [from, tag, tensor = view_of_kernel(tensors.at(0))](
            const ProcessGroup& host) { host.recv(tensor, from, tag); });
  }

 private:
  /// Keeps a communicator to the end of the process. A rank that is gone does
  /// not end the calls of the others, as with NCCL on one host.
  static void keep(std::shared_ptr<Communicator> communicator) {
    static std::mutex mutex;
    static auto* const kept = new std::vector<std::shared_ptr<Communicator>>();
    const std::lock_guard lock(mutex);
    kept->push_back(std::move(communicator));
  }

  struct Call {
    OpType type;
    bool is_async = false;
    int root = -1;
    std::optional<c10d::ReduceOp> op;
    bool has_own_sizes = false;  // that may differ from other ranks' sizes
    Tensors inputs;
    Tensors outputs;
    Tensors others;  // on some ranks

    std::string description() const {
      std::string text = c10d::opTypeToString(type);
      if (root >= 0) text += fmt::format(" root {}", root);
      if (op) text += fmt::format(" reduction {}", static_cast<int>(op->op_));
      for (const Tensor& tensor : inputs) {
        text += fmt::format(" {}", c10::toString(tensor.scalar_type()));
        if (!has_own_sizes) text += fmt::format(" x {}", tensor.numel());
      }
      return text;
    }
    Tensors tensors() const {
      Tensors all = inputs;
      all.insert(all.end(), outputs.begin(), outputs.end());
      all.insert(all.end(), others.begin(), others.end());
      return all;
    }
  };

  WorkPtr all_reduce(OpType type, const Tensors& tensors,
                     const c10d::ReduceOp& op, bool is_async) {
    return launch(
        {.type = type,
         .is_async = is_async,
         .op = op,
         .inputs = tensors,
         .outputs = tensors},
        [op, views = views_of_kernel(tensors)](const ProcessGroup& host) {
          for (const Tensor& tensor : views) {
            const auto all = host.all_gather(contribution(tensor, op)).result();
            tensor.copy_(reduced(all, op));
          }
        });
  }

  WorkPtr reduce_scatter(OpType type, const Tensor& output,
                         const Tensors& inputs, Tensors parts,
                         const c10d::ReduceScatterOptions& options) {
    return launch(
        {.type = type,
         .is_async = options.asyncOp,
         .op = options.reduceOp,
         .inputs = inputs,
         .outputs = {output}},
        [to = view_of_kernel(output), parts = std::move(parts),
         op = options.reduceOp](const ProcessGroup& host) {
          Tensors scaled_parts, per_rank;
          for (const Tensor& part : parts) {
            scaled_parts.push_back(contribution(part, op).view({-1}));
            per_rank.push_back(torch::empty({to.numel()}, to.options()));
          }
          host.all_to_all(per_rank, scaled_parts);
          to.copy_(reduced(per_rank, op).view(to.sizes()));
        });
  }

  /// Checks the tensors, and returns their device.
  c10::Device check(const Call& call) {
    const Tensors all = call.tensors();
    for (const Tensor& tensor : all) {
      TORCH_CHECK(tensor.device().type() == kSim && tensor.is_contiguous(),
                  "simccl: tensors must be contiguous, on sim; got ",
                  tensor.device(), ", strides ", tensor.strides());
      TORCH_CHECK(tensor.device() == all[0].device(),
                  "simccl: one call has tensors on ", all[0].device(), " and ",
                  tensor.device());
    }
    if (all.empty()) {
      // As ProcessGroupNCCL guesses it.
      const int guess = device_ ? *device_ : getRank() % installed().devices;
      return {kSim, static_cast<c10::DeviceIndex>(guess)};
    }
    const c10::Device device = all[0].device();
    TORCH_CHECK(!device_ || *device_ == device.index(),
                "simccl: this communicator is of sim:", device_.value_or(-1),
                ", got a tensor on ", device);
    return device;
  }

  /// Lets the ranks meet in the first call with tensors.
  void connect(const c10::Device& device) {
    if (device_) return;
    const auto all = communicator_->host().all_gather_text(
        fmt::format("sim:{} of process {}", device.index(), ::getpid()));
    for (size_t rank = 0; rank < all.size(); ++rank) {
      TORCH_CHECK_WITH(
          DistBackendError, std::count(all.begin(), all.end(), all[rank]) == 1,
          "simccl: Duplicate GPU detected : several ranks use ", all[rank]);
    }
    device_ = device.index();
    stream_ = new_stream(device.index());
  }

  WorkPtr launch(const Call& call, Move move) {
    communicator_->check_usable(call.type);
    const c10::Device device = check(call);
    const c10::DeviceGuard guard(device);
    try {
      connect(device);
    } catch (const CommError& error) {
      C10_THROW_ERROR(DistBackendError, std::string("simccl: ") + error.what());
    }
    ++calls_;
    const c10::Stream stream =
        call.is_async ? *stream_ : current_stream(device.index());
    auto work = enqueue(
        call, stream,
        [description = call.description(),
         move = std::move(move)](const Communicator& communicator) {
          communicator.compare(description);
          move(communicator.host());
        },
        last_end_);
    last_end_ = work->end();
    return work;
  }

  WorkPtr message(OpType type, int peer, const Tensors& tensors, Move move) {
    communicator_->check_usable(type);
    const Call call{.type = type, .is_async = true, .outputs = tensors};
    const c10::Device device = check(call);
    const c10::DeviceGuard guard(device);
    auto [stream, is_new] = streams_of_pairs_.try_emplace(peer);
    if (is_new) stream->second = new_stream(device.index());
    return enqueue(
        call, *stream->second,
        [move = std::move(move)](const Communicator& communicator) {
          move(communicator.host());
        },
        nullptr);
  }

  c10::intrusive_ptr<StreamWork> enqueue(
      const Call& call, const c10::Stream& stream,
      std::function<void(const Communicator&)> task,
      const std::shared_ptr<c10::Event>& before) {
    if (call.is_async) {
      c10::Event ready(kSim);
      ready.record(current_stream(stream.device_index()));
      ready.block(stream);
    }
    if (before != nullptr) before->block(stream);
    auto outcome = std::make_shared<Outcome>();
    if (call.is_async) outcome->held = call.tensors();
    thread_of(stream).enqueue([communicator = communicator_, outcome,
                               task = std::move(task), type = call.type,
                               device = stream.device_index()] {
      const torch::NoGradGuard no_grad;
      const at::AutoDispatchBelowAutograd below_autograd;
      try {
        communicator->check_usable(type);
        throw_error(device);  // after an error, no kernel runs
        task(*communicator);
      } catch (const std::exception& error) {
        const std::string text = text_without_backtrace(error);
        {
          const std::lock_guard lock(outcome->mutex);
          outcome->error =
              std::make_exception_ptr(c10::DistBackendError(fmt::format(
                  "simccl: {} failed: {}", c10d::opTypeToString(type), text)));
        }
        communicator->fail(text);
      }
      outcome->release();
    });
    return c10::make_intrusive<StreamWork>(getRank(), call.type, stream,
                                           call.outputs, std::move(outcome));
  }

  const std::shared_ptr<Communicator> communicator_;
  std::optional<int> device_;
  std::optional<c10::Stream> stream_;  // of asynchronous calls
  std::map<int, std::optional<c10::Stream>> streams_of_pairs_;
  std::shared_ptr<c10::Event> last_end_;
  uint64_t calls_ = 0;
};

}  // namespace

void install_collectives() {
  static std::once_flag once;
  std::call_once(once, [] {
    register_backend("simccl", kSim,
                     [](const c10::intrusive_ptr<c10d::Store>& store, int rank,
                        int size, std::chrono::milliseconds timeout)
                         -> c10::intrusive_ptr<c10d::Backend> {
                       return c10::make_intrusive<Simccl>(store, rank, size,
                                                          timeout);
                     });
  });
}

}  // namespace lockstep::sim
