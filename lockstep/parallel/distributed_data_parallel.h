#pragma once

#include <cstddef>
#include <functional>
#include <memory>
#include <utility>
#include <vector>

#include <torch/nn/module.h>
#include <torch/nn/pimpl.h>
#include <torch/script.h>
#include <torch/types.h>

#include "lockstep/comm/process_group.h"
#include "lockstep/parallel/ddp/ddp_options.h"
#include "lockstep/parallel/exchange/power_sgd.h"
#include "lockstep/parallel/fused_optimizer.h"  // IWYU pragma: export
#include "lockstep/parallel/parallel_module.h"

namespace lockstep {

/// DistributedDataParallel for C++: one replica of a module on each rank.
/// Gradients are averaged over the ranks during the backward.
///
///     auto group = lockstep::init();
///     auto model = lockstep::DistributedDataParallel(net, group);
///     auto fused = lockstep::optim::fuse(optimizer, model);
///     auto loss = torch::cross_entropy_loss(model->forward(x), y);
///     loss.backward();
///     fused.step();
///
/// Each rank passes its own part of the batch. An optimizer made from
/// model->parameters() then makes the same step on every rank. Gradients are
/// summed along a tree (docs/collectives.md). The result has the same bits over
/// shm and tcp, and with 1, 2, 4, ... ranks the same bits as DataParallel with
/// as many shards.
///
/// If the loss does not depend on some parameter, that same backward() throws
/// an error that names the parameter, before anything is exchanged (see
/// options). A backward that gives no parameter a gradient (all are frozen, and
/// the inputs require grad) exchanges nothing, and each rank keeps the buffers
/// that its own forward wrote. If one rank fails, the other ranks stop waiting
/// for it. The constructor, which compares the parameters' names and shapes
/// over the ranks, backward() and join() are collective. Not thread-safe.
///
/// A wrapper may be destroyed before the backward: the graph keeps alive what
/// sums the gradients.
template <class M>
class DistributedDataParallelImpl : public ParallelModule<M> {
  using Base = ParallelModule<M>;

 public:
  using Output = typename Base::Output;

  DistributedDataParallelImpl(
      const std::shared_ptr<M>& module,
      const std::function<std::shared_ptr<M>()>& factory,
      const ProcessGroup& process_group,
      const DistributedDataParallelOptions& options)
      : Base(module, factory, process_group, options) {}

  /// Same as the module's own forward(), which gets the inputs as they are,
  /// also undefined ones. Under torch::NoGradGuard nothing is exchanged.
  template <class... Inputs>
  Output forward(Inputs&&... inputs) {
    return detail::from_ivalue<Output>(
        Engine::watch({c10::IValue(inputs)...}, [&] {
          return c10::IValue(this->module()->forward(
              detail::plain(std::forward<Inputs>(inputs))...));
        }));
  }

  using Engine::buckets;
};

/// Specialization for a TorchScript module.
template <>
class DistributedDataParallelImpl<torch::jit::Module>
    : public ParallelModule<torch::jit::Module> {
 public:
  DistributedDataParallelImpl(const torch::jit::Module& module,
                              const ProcessGroup& process_group,
                              const DistributedDataParallelOptions& options)
      : ParallelModule(module, process_group, options) {}

  c10::IValue forward(const std::vector<c10::IValue>& inputs) {
    return watch(inputs, [&] {
      return module().forward(detail::unshared_inputs(inputs));
    });
  }
};

/// Holds a DistributedDataParallelImpl<M>, as the holders of torch::nn do.
/// Copies share it. Use `->`.
template <class M>
class DistributedDataParallel
    : public detail::WrapperHolder<DistributedDataParallelImpl<M>> {
  using Impl = DistributedDataParallelImpl<M>;
  using Holder = detail::WrapperHolder<Impl>;

 public:
  using Holder::Holder;
  DistributedDataParallel(std::shared_ptr<M> module,
                          const ProcessGroup& process_group,
                          const DistributedDataParallelOptions& options = {})
      : Holder(std::make_shared<Impl>(module, detail::cloner_of(module),
                                      process_group, options)) {}
  /// Same, from a holder made by TORCH_MODULE.
  DistributedDataParallel(const torch::nn::ModuleHolder<M>& module,
                          const ProcessGroup& process_group,
                          const DistributedDataParallelOptions& options = {})
      : DistributedDataParallel(module.ptr(), process_group, options) {}
  /// Wraps a module that can't be cloned. `factory` builds an identical module
  /// for train_step().
  DistributedDataParallel(std::shared_ptr<M> module,
                          const std::function<std::shared_ptr<M>()>& factory,
                          const ProcessGroup& process_group,
                          const DistributedDataParallelOptions& options = {})
      : Holder(std::make_shared<Impl>(std::move(module), factory, process_group,
                                      options)) {}
  DistributedDataParallel(const torch::nn::ModuleHolder<M>& module,
                          const std::function<std::shared_ptr<M>()>& factory,
                          const ProcessGroup& process_group,
                          const DistributedDataParallelOptions& options = {})
      : DistributedDataParallel(module.ptr(), factory, process_group, options) {
  }
  /// Reports at compile time what can't be wrapped, or can't be the
  /// process group.
  template <class T, class Next, class... Rest>
  requires detail::WrongArguments<T, Next, const ProcessGroup&, M>
  DistributedDataParallel(const T&, const Next&, const Rest&...)
      : Holder(nullptr) {
    detail::check_module<T>();
    static_assert(std::derived_from<T, torch::nn::Module>,
                  "the second argument must be a lockstep::ProcessGroup, such "
                  "as lockstep::init()");
  }
  /// Reports at compile time that the process group is missing.
  template <detail::Wrappable T>
  explicit DistributedDataParallel(const T&) : Holder(nullptr) {
    static_assert(detail::kNever<T>,
                  "the second argument is missing: a lockstep::ProcessGroup "
                  "with all ranks, such as lockstep::init()");
  }
};

/// Specialization for a TorchScript module.
template <>
class DistributedDataParallel<torch::jit::Module>
    : public detail::ScriptWrapper {
 public:
  DistributedDataParallel(const torch::jit::Module& module,
                          const ProcessGroup& process_group,
                          const DistributedDataParallelOptions& options = {})
      : impl_(std::make_shared<DistributedDataParallelImpl<torch::jit::Module>>(
            module, process_group, options)) {}
  DistributedDataParallelImpl<torch::jit::Module>* operator->() const {
    return impl_.get();
  }
  const std::shared_ptr<DistributedDataParallelImpl<torch::jit::Module>>& ptr()
      const {
    return impl_;
  }

 private:
  std::shared_ptr<DistributedDataParallelImpl<torch::jit::Module>> impl_;
};

template <class T, class Next, class... Rest>
DistributedDataParallel(const T&, const Next&, const Rest&...)
    -> DistributedDataParallel<typename detail::Wrapped<T>::Module>;
template <detail::Wrappable T>
DistributedDataParallel(const T&)
    -> DistributedDataParallel<typename detail::Wrapped<T>::Module>;

}  // namespace lockstep
