#pragma once

#include <concepts>
#include <functional>
#include <memory>
#include <utility>
#include <vector>

#include <torch/nn/module.h>
#include <torch/nn/pimpl.h>
#include <torch/script.h>
#include <torch/types.h>

#include "lockstep/parallel/fused_optimizer.h"  // IWYU pragma: export
#include "lockstep/parallel/group/data_parallel_options.h"
#include "lockstep/parallel/module/wrap_arguments.h"
#include "lockstep/parallel/parallel_module.h"

namespace lockstep {

namespace detail {

/// Returns `options`. Throws InvalidArgument if they have several ranks, which
/// are for DistributedDataParallel.
DataParallelOptions for_one_rank(DataParallelOptions options);

}  // namespace detail

/// nn.DataParallel for C++: runs a module on several devices of one process.
///
///     auto model = lockstep::DataParallel(net, lockstep::devices("auto"));
///     auto fused = lockstep::optim::fuse(optimizer, model);
///     auto loss = torch::cross_entropy_loss(model->forward(x), y);
///     loss.backward();
///     fused.step();
///
/// `M` is a torch::nn::Module whose forward() is not overloaded and takes and
/// returns tensors, tuples, vectors, dicts or IValues. Batches are split along
/// `dim`. Gradients are summed onto the module's own parameters. Buffers take
/// the values of the first shard. An exception in a replica is rethrown as a
/// ReplicaError that names its device. Not thread-safe.
///
/// Changes to what a module registers take effect at the next forward: values,
/// types and memory of parameters and buffers (also by torch::load),
/// requires_grad, the training mode of any submodule, the options of
/// torch::nn's modules, and a replaced submodule. Call rebuild() after a change
/// to another member. The checks below find what they can reach if you forget.
///
/// Before the first forward() and the first train_step(), and now and then
/// later, one shard is computed by a replica and by the module itself. A
/// ParallelError names what differs. See DataParallelOptions::verify.
template <class M>
class DataParallelImpl : public ParallelModule<M> {
  using Base = ParallelModule<M>;

 public:
  using Output = typename Base::Output;

  DataParallelImpl(const std::shared_ptr<M>& module,
                   const std::function<std::shared_ptr<M>()>& factory,
                   std::vector<Device> devices, DataParallelOptions options)
      : Base(module, factory, std::move(devices),
             detail::for_one_rank(std::move(options))) {}

  /// Same as the module's own forward(), but runs on all devices.
  template <class... Inputs>
  Output forward(Inputs&&... inputs) {
    return detail::from_ivalue<Output>(
        Engine::forward(Base::pack(std::forward<Inputs>(inputs)...)));
  }

  using Engine::output_device;
};

/// Specialization for a TorchScript module.
template <>
class DataParallelImpl<torch::jit::Module>
    : public ParallelModule<torch::jit::Module> {
 public:
  DataParallelImpl(const torch::jit::Module& module,
                   std::vector<Device> devices, DataParallelOptions options)
      : ParallelModule(module, std::move(devices),
                       detail::for_one_rank(std::move(options))) {}

  c10::IValue forward(const std::vector<c10::IValue>& inputs) {
    return Engine::forward(inputs);
  }
};

/// Holds a DataParallelImpl<M>, as the holders of torch::nn do. Copies share
/// it. Use `->`.
template <class M>
class DataParallel : public detail::WrapperHolder<DataParallelImpl<M>> {
  using Impl = DataParallelImpl<M>;
  using Holder = detail::WrapperHolder<Impl>;

 public:
  using Holder::Holder;
  /// Wraps a module that can be cloned (torch::nn::Cloneable).
  DataParallel(std::shared_ptr<M> module, std::vector<Device> devices,
               DataParallelOptions options = {})
      : Holder(std::make_shared<Impl>(module, detail::cloner_of(module),
                                      std::move(devices), std::move(options))) {
  }
  /// Same, from a holder made by TORCH_MODULE.
  DataParallel(const torch::nn::ModuleHolder<M>& module,
               std::vector<Device> devices, DataParallelOptions options = {})
      : DataParallel(module.ptr(), std::move(devices), std::move(options)) {}
  /// Wraps any module. `factory` builds an identical module for each replica.
  DataParallel(std::shared_ptr<M> module,
               const std::function<std::shared_ptr<M>()>& factory,
               std::vector<Device> devices, DataParallelOptions options = {})
      : Holder(std::make_shared<Impl>(std::move(module), factory,
                                      std::move(devices), std::move(options))) {
  }
  DataParallel(const torch::nn::ModuleHolder<M>& module,
               const std::function<std::shared_ptr<M>()>& factory,
               std::vector<Device> devices, DataParallelOptions options = {})
      : DataParallel(module.ptr(), factory, std::move(devices),
                     std::move(options)) {}
  /// Reports at compile time what can't be wrapped, or can't be the devices.
  template <class T, class Next, class... Rest>
  requires detail::WrongArguments<T, Next, std::vector<Device>, M> DataParallel(
      const T&, const Next&, const Rest&...)
      : Holder(nullptr) {
    detail::check_module<T>();
    static_assert(std::derived_from<T, torch::nn::Module>,
                  "the devices must be a std::vector<lockstep::Device>, such "
                  "as lockstep::devices(\"2xcpu\")");
  }
  /// Reports at compile time that the devices are missing.
  template <detail::Wrappable T>
  explicit DataParallel(const T&) : Holder(nullptr) {
    static_assert(detail::kNever<T>,
                  "the second argument is missing: the devices, such as "
                  "lockstep::devices(\"auto\")");
  }
};

/// Specialization for a TorchScript module.
template <>
class DataParallel<torch::jit::Module> : public detail::ScriptWrapper {
 public:
  DataParallel(const torch::jit::Module& module, std::vector<Device> devices,
               DataParallelOptions options = {})
      : impl_(std::make_shared<DataParallelImpl<torch::jit::Module>>(
            module, std::move(devices), std::move(options))) {}
  DataParallelImpl<torch::jit::Module>* operator->() const {
    return impl_.get();
  }
  const std::shared_ptr<DataParallelImpl<torch::jit::Module>>& ptr() const {
    return impl_;
  }

 private:
  std::shared_ptr<DataParallelImpl<torch::jit::Module>> impl_;
};

template <class T, class Next, class... Rest>
DataParallel(const T&, const Next&, const Rest&...)
    -> DataParallel<typename detail::Wrapped<T>::Module>;
template <class T>
DataParallel(const T&, std::vector<Device>, DataParallelOptions = {})
    -> DataParallel<typename detail::Wrapped<T>::Module>;
template <detail::Wrappable T>
DataParallel(const T&) -> DataParallel<typename detail::Wrapped<T>::Module>;

}  // namespace lockstep
