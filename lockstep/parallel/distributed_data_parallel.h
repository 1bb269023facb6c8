#pragma once

#include <functional>
#include <memory>
#include <type_traits>
#include <utility>
#include <vector>

#include <torch/nn/module.h>
#include <torch/nn/pimpl.h>
#include <torch/script.h>
#include <torch/types.h>
#include <torch/utils.h>

#include "lockstep/comm/world.h"
#include "lockstep/parallel/ddp/options.h"
#include "lockstep/parallel/exchange/power_sgd.h"
#include "lockstep/parallel/parallel_module.h"

namespace lockstep {

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
class DistributedDataParallelImpl : public ParallelModule<M> {
  using Base = ParallelModule<M>;

 public:
  using Output = typename Base::Output;

  DistributedDataParallelImpl(
      std::shared_ptr<M> module,
      const std::function<std::shared_ptr<M>()>& factory, const World& world,
      const DistributedDataParallelOptions& options)
      : Base(module, std::make_shared<Engine>(engine_module(module, factory),
                                              world, options)) {}

  /// As the module's own forward(). Under torch::NoGradGuard nothing is
  /// exchanged.
  template <class... Inputs>
  Output forward(Inputs&&... inputs) {
    return detail::from_ivalue<Output>(
        this->engine().watch({c10::IValue(inputs)...}, [&] {
          return c10::IValue(this->module()->forward(
              detail::plain(std::forward<Inputs>(inputs))...));
        }));
  }

  /// Which parameters' gradients of a backward go in one go, by their places
  /// among those that train; in the order in which buckets are exchanged.
  std::vector<std::vector<size_t>> buckets() const {
    return this->engine().buckets();
  }
};

/// The same for a TorchScript module.
template <>
class DistributedDataParallelImpl<torch::jit::Module>
    : public ParallelModule<torch::jit::Module> {
 public:
  DistributedDataParallelImpl(const torch::jit::Module& module,
                              const World& world,
                              const DistributedDataParallelOptions& options)
      : ParallelModule(module, std::make_shared<Engine>(engine_module(module),
                                                        world, options)) {}

  c10::IValue forward(const std::vector<c10::IValue>& inputs) {
    return engine().watch(inputs, [&] {
      return module().forward(detail::unshared_inputs(inputs));
    });
  }
};

/// Holds a DistributedDataParallelImpl<M>: copies share it. Use `->`.
template <class M>
class DistributedDataParallel {
 public:
  DistributedDataParallel(std::shared_ptr<M> module, const World& world,
                          const DistributedDataParallelOptions& options = {})
      : impl_(std::make_shared<DistributedDataParallelImpl<M>>(
            module, detail::cloner_of(module), world, options)) {}
  /// The same, from a holder made by TORCH_MODULE.
  DistributedDataParallel(const torch::nn::ModuleHolder<M>& module,
                          const World& world,
                          const DistributedDataParallelOptions& options = {})
      : DistributedDataParallel(module.ptr(), world, options) {}
  /// A module that can't be cloned; `factory` builds another one like it, for
  /// train_step().
  DistributedDataParallel(std::shared_ptr<M> module,
                          const std::function<std::shared_ptr<M>()>& factory,
                          const World& world,
                          const DistributedDataParallelOptions& options = {})
      : impl_(std::make_shared<DistributedDataParallelImpl<M>>(
            std::move(module), factory, world, options)) {}
  DistributedDataParallel(const torch::nn::ModuleHolder<M>& module,
                          const std::function<std::shared_ptr<M>()>& factory,
                          const World& world,
                          const DistributedDataParallelOptions& options = {})
      : DistributedDataParallel(module.ptr(), factory, world, options) {}
  /// Explains what can't be wrapped, or can't be the world.
  template <class T, class Next, class... Rest>
  requires detail::WrongArguments<T, Next, const World&, M>
  DistributedDataParallel(const T&, const Next&, const Rest&...) {
    detail::check_module<T>();
    static_assert(std::derived_from<T, torch::nn::Module>,
                  "the ranks must be a lockstep::World, such as "
                  "lockstep::init()");
  }

  DistributedDataParallelImpl<M>* operator->() const { return impl_.get(); }
  DistributedDataParallelImpl<M>& operator*() const { return *impl_; }
  template <class... Inputs>
  auto operator()(Inputs&&... inputs) const {
    return impl_->forward(std::forward<Inputs>(inputs)...);
  }

 private:
  std::shared_ptr<DistributedDataParallelImpl<M>> impl_;
};

/// The same for a TorchScript module.
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

template <class T, class Next, class... Rest>
DistributedDataParallel(const T&, const Next&, const Rest&...)
    -> DistributedDataParallel<typename detail::Wrapped<T>::Module>;

}  // namespace lockstep
