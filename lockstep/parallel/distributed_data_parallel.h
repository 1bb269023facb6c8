#pragma once

#include <functional>
#include <memory>
#include <type_traits>
#include <utility>
#include <vector>

#include <torch/script.h>
#include <torch/torch.h>

#include "lockstep/comm/world.h"
#include "lockstep/parallel/ddp/options.h"
#include "lockstep/parallel/ddp/reducer.h"
#include "lockstep/parallel/exchange/comm_hooks.h"
#include "lockstep/parallel/exchange/power_sgd.h"
#include "lockstep/parallel/module/invoke.h"
#include "lockstep/parallel/module/module_handle.h"
#include "lockstep/parallel/module/nested.h"

namespace lockstep {

/// Keeps gradients on their rank while it lives.
class NoSync {
 public:
  explicit NoSync(std::shared_ptr<ddp::Reducer> reducer)
      : reducer_(std::move(reducer)), was_synced_(reducer_->is_synced()) {
    reducer_->set_synced(false);
  }
  ~NoSync() { reducer_->set_synced(was_synced_); }
  NoSync(const NoSync&) = delete;
  NoSync& operator=(const NoSync&) = delete;

 private:
  std::shared_ptr<ddp::Reducer> reducer_;
  bool was_synced_;
};

/// What does not depend on the module's type.
class DistributedDataParallelBase {
 public:
  /// While the result lives, backward passes of forwards made under it add to
  /// .grad on this rank alone. The next synced backward averages all of it.
  [[nodiscard]] NoSync no_sync() { return NoSync(reducer_); }

  /// Replaces the exchange of gradients, once, before the first backward.
  void register_comm_hook(CommHook hook) {
    reducer_->set_hook(std::move(hook));
  }

  /// Runs `steps`, of which each rank may have another number: ranks that are
  /// done answer the others with zeros, and at last take over the parameters
  /// of those that went on longest. The optimizer's state is not exchanged.
  void join(const std::function<void()>& steps,
            const JoinOptions& options = {}) {
    reducer_->join(steps, options);
  }

  const ddp::Reducer& reducer() const { return *reducer_; }

 protected:
  DistributedDataParallelBase(const World& world, ModuleHandle module,
                              const DistributedDataParallelOptions& options);

  /// Samples of the first tensor in `inputs`; 1 if there is none.
  int64_t samples_of(const c10::IValue& inputs) const;
  /// Runs `forward` such that a backward through its output is exchanged.
  c10::IValue run(int64_t samples, const std::function<c10::IValue()>& forward);

 private:
  int64_t dim_;
  std::shared_ptr<ddp::Reducer> reducer_;
};

/// torch's DistributedDataParallel for C++: one replica of a module on each
/// rank, whose gradients are averaged while the backward computes them.
///
///     auto world = lockstep::init();
///     auto model = lockstep::DistributedDataParallel(net, world);
///     auto loss = torch::cross_entropy_loss(model->forward(x), y);
///     loss.backward();
///     optimizer.step();
///
/// Each rank passes its own part of the batch; any optimizer, made from
/// model->parameters(), then makes the same step on every rank. The gradient is
/// summed along the tree of tree_reduce.h: the same bits over shm and gloo, and
/// with 1, 2, 4, ... ranks those of DataParallel with as many shards.
///
/// A parameter that the loss does not depend on is an error in the same
/// backward(), by name, before anything is exchanged (see options). Whatever
/// goes wrong on one rank ends the others' waits. Constructor, backward() and
/// join() are collective. Not thread-safe.
template <class M>
class DistributedDataParallelImpl : public DistributedDataParallelBase {
 public:
  using Output = std::decay_t<detail::ForwardResult<M>>;

  DistributedDataParallelImpl(std::shared_ptr<M> module, const World& world,
                              const DistributedDataParallelOptions& options)
      : DistributedDataParallelBase(world, handle_of(module), options),
        module_(std::move(module)) {}

  /// As the module's own forward(). Under torch::NoGradGuard nothing is
  /// exchanged.
  template <class... Inputs>
  Output forward(Inputs&&... inputs) {
    if (!torch::GradMode::is_enabled()) {
      return module_->forward(std::forward<Inputs>(inputs)...);
    }
    const auto arguments = c10::ivalue::Tuple::create(
        std::vector<c10::IValue>{c10::IValue(inputs)...});
    return detail::from_ivalue<Output>(run(samples_of(arguments), [&] {
      return c10::IValue(module_->forward(std::forward<Inputs>(inputs)...));
    }));
  }

  /// The wrapped module: names and checkpoints have no "module." before them.
  std::shared_ptr<M> module() const { return module_; }
  std::vector<torch::Tensor> parameters() const {
    return module_->parameters();
  }
  auto named_parameters() const { return module_->named_parameters(); }
  std::vector<torch::Tensor> buffers() const { return module_->buffers(); }
  auto named_buffers() const { return module_->named_buffers(); }
  void zero_grad(bool set_to_none = true) { module_->zero_grad(set_to_none); }
  void train(bool on = true) { module_->train(on); }
  void eval() { module_->eval(); }
  bool is_training() const { return module_->is_training(); }

 private:
  std::shared_ptr<M> module_;
};

/// For TorchScript: inputs and output are IValues.
template <>
class DistributedDataParallelImpl<torch::jit::Module>
    : public DistributedDataParallelBase {
 public:
  DistributedDataParallelImpl(const torch::jit::Module& module,
                              const World& world,
                              const DistributedDataParallelOptions& options);

  c10::IValue forward(const std::vector<c10::IValue>& inputs);

  torch::jit::Module& module() { return module_; }
  std::vector<torch::Tensor> parameters() const;
  void train(bool on = true) { module_.train(on); }
  void eval() { module_.eval(); }

 private:
  torch::jit::Module module_;
};

/// Holds a DistributedDataParallelImpl<M>: copies share it. Use `->`.
template <class M>
class DistributedDataParallel {
 public:
  DistributedDataParallel(std::shared_ptr<M> module, const World& world,
                          const DistributedDataParallelOptions& options = {})
      : impl_(std::make_shared<DistributedDataParallelImpl<M>>(
            std::move(module), world, options)) {}
  /// The same, from a holder made by TORCH_MODULE.
  DistributedDataParallel(const torch::nn::ModuleHolder<M>& module,
                          const World& world,
                          const DistributedDataParallelOptions& options = {})
      : DistributedDataParallel(module.ptr(), world, options) {}

  DistributedDataParallelImpl<M>* operator->() const { return impl_.get(); }
  DistributedDataParallelImpl<M>& operator*() const { return *impl_; }
  template <class... Inputs>
  auto operator()(Inputs&&... inputs) const {
    return impl_->forward(std::forward<Inputs>(inputs)...);
  }

 private:
  std::shared_ptr<DistributedDataParallelImpl<M>> impl_;
};

template <>
class DistributedDataParallel<torch::jit::Module> {
 public:
  DistributedDataParallel(const torch::jit::Module& module, const World& world,
                          const DistributedDataParallelOptions& options = {})
      : impl_(std::make_shared<DistributedDataParallelImpl<torch::jit::Module>>(
            module, world, options)) {}
  DistributedDataParallelImpl<torch::jit::Module>* operator->() const {
    return impl_.get();
  }

 private:
  std::shared_ptr<DistributedDataParallelImpl<torch::jit::Module>> impl_;
};

template <class M>
requires requires { typename M::ContainedType; }
DistributedDataParallel(const M&, const World&)
    ->DistributedDataParallel<typename M::ContainedType>;
template <class M>
requires requires { typename M::ContainedType; }
DistributedDataParallel(const M&, const World&, DistributedDataParallelOptions)
    ->DistributedDataParallel<typename M::ContainedType>;

DistributedDataParallel(torch::jit::Module, const World&)
    ->DistributedDataParallel<torch::jit::Module>;
DistributedDataParallel(torch::jit::Module, const World&,
                        DistributedDataParallelOptions)
    ->DistributedDataParallel<torch::jit::Module>;

}  // namespace lockstep
